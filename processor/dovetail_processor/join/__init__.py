"""The partitioned symmetric n-way hash join: state in pages, one key index per group.

Read `layout` (a row), `slab` (pages), `state` (the join), then `kernels` in the order
`pages`, `index`, `advance`, `columns`.
"""
