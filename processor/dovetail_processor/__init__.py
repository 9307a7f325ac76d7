"""Runs it: operators of a query graph over partition groups held in pages."""
