"""The query graph: operators as nodes, bounded buffers as arcs, a loop that runs them.

Read `arc`, `node`, `loop`; which node runs next is a strategy of `dovetail_processor.scheduling`.
"""
