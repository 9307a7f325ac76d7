"""Decides where: plans queries, owns the partition map, adapts and moves state.

Read in this order:

1. `controller`: the whole manager without I/O, events in and effects out; `effects` lists them.
2. `state`: all that it knows; `records` and `query`: a stream and a query; `journal`: how whatever
   must survive is written before anyone is told.
3. `members`, `streams`, `queries`: what happens to each, with the writes that it leads to;
   `membership`, `load` and `reports` are what they keep of the processors, `removals` what is left
   to do when a query is dropped while one of them is away.
4. `moves` (the eight steps: `protocol` first) and `adaptation` (policies, then `rounds`).
5. `assignments`: what each processor is told to run; `history`: what people can look up.
6. `loop`: the thread that feeds the controller; `store`, `store_writer`: where writes go;
   `control_server`, `admin`, `server`: how others reach it; `cleanups`: the processes it starts.

`planner` turns SQL into a plan, and needs nothing of the above.
"""
