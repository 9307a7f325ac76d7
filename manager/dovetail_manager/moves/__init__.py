"""The manager's side of a state move: `protocol` has the table of steps, `coordinator` runs the
moves of one query, `journal` is what a restarted manager reads."""
