"""A processor's side of a state move: pure machines, messages in, instructions out.

Read `participant` for the whole, then `sender`, `receiver` and `split_host` for the three roles;
`link` is the ordered channel from a split to an instance that markers travel on. The manager's
side and the table of all steps are in `dovetail_manager.moves.protocol`.
"""
