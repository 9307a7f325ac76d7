"""When state moves or spills: policies suggest, one loop admits (S4 sections 4 to 6).

One policy per file, each a pure function of a `snapshot`; `admission` lets one adaptation at a
time run on a processor and keeps the record of what was decided and why; `rounds` asks it
once per sample and does what operators ask for, `draining` empties a processor that leaves,
`initial` is the distribution before any statistics exist.
"""
