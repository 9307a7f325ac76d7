"""The query graph of a worker: operators as nodes, bounded buffers as arcs, one step at a time.

Read `arc`, `node`, `loop`; which node works next is a strategy of `dovetail_processor.scheduling`.
"""
