"""Operators of the query graph, one per module: `source`, `evaluate`, `join`, `deliver`."""
