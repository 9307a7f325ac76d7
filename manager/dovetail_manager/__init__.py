"""Decides where: plans queries, owns the partition map, adapts and moves state."""
