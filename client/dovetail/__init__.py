"""The front door: command line, Python interface, embedded cluster."""
