"""One command per file; each imports what it needs only when it is called."""
