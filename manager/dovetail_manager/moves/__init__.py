"""The manager's side of a state move.

`protocol` has the table of steps, `coordinator` runs the moves of one query by it (`steps` takes
them from row to row, `placement` is where groups and splits are), `records` is what a restarted
manager reads, `journal` ties the moves of all queries to the controller.
"""
