"""Workloads, benchmarks and experiments: programs with JSON output."""
