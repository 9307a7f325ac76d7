"""The contract: whatever two processes of Dovetail must agree on. Imports nothing else of ours.

Read `query` for what is joined, `partitioning` for who owns a row, `spill_format` for what rests
on disk, `errors` for how a refusal looks.
"""

import os

# Read when grpc is first imported. Its handlers of fork() break the programs that we start in a
# child (Spark's Java, seen as a gateway that exits at once); nothing of ours forks without exec.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
