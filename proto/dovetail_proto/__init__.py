"""The contract: whatever two processes of Dovetail must agree on. Imports nothing else of ours.

Read `query` for what is joined, `partitioning` for who owns a row, `spill_format` for what rests
on disk, `errors` for how a refusal looks.
"""
