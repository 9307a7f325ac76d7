"""`python -m dovetail_processor`: a query processor as a process of its own."""

from __future__ import annotations

from dovetail_processor.cluster.main import main

main()
