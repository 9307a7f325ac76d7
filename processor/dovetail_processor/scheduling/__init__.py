"""Which operator runs next: one strategy per module."""
