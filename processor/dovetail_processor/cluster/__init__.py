"""A processor in a cluster: many queries, one thread that runs them, a gRPC shell around it.

    Ingest, files ─▶ ingress ─▶ splits ─▶ links ─▶ instance: join ─▶ result log        (`worker`)
    manager ◀─ control stream ─▶ `worker` ─▶ `query_run` ─▶ participant's instructions

Read `worker` (the loop and its mailbox), `query_run` (one query), then `split_host` and `instance`
(its two halves), `transit` (groups on their way), `ingress` (streams at home here); `server` and
`peers` are the shell. Everything but the shell runs in the worker's thread.
"""
