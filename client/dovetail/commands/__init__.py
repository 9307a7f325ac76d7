"""One topic per file; each command imports what it needs only when it is called."""
