"""Local adaptation choices of a processor (S4 4.3): which groups go to disk, which to move."""
