"""Produces what spilled state still owes."""
