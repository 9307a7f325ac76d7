"""The clean-up: everything that spilled state owes, once the run is closed.

Read `terms` (which combinations are owed), `slices` (the unit of work), `task` (one bin, from
files to results), `conducting` (all bins), then `local` (on this machine).
"""

from dovetail_pipeline.cleanup.bins import Bin, bin_from_json
from dovetail_pipeline.cleanup.catalog import Catalog, open_catalog
from dovetail_pipeline.cleanup.conducting import CleanupResult, Hands, Progress, conduct
from dovetail_pipeline.cleanup.files import OpenFiles
from dovetail_pipeline.cleanup.ledger import BinResult, Ledger, result_from_json
from dovetail_pipeline.cleanup.local import run_here, run_local
from dovetail_pipeline.cleanup.owed import GroupOwed, OwedReport, owed, verify
from dovetail_pipeline.cleanup.planning import CleanupPlan, plan_bins
from dovetail_pipeline.cleanup.task import run_bin
from dovetail_pipeline.cleanup.terms import Rows, Term, delta_terms, show

__all__ = [
    "Bin",
    "BinResult",
    "Catalog",
    "CleanupPlan",
    "CleanupResult",
    "GroupOwed",
    "Hands",
    "Ledger",
    "OpenFiles",
    "OwedReport",
    "Progress",
    "Rows",
    "Term",
    "bin_from_json",
    "conduct",
    "delta_terms",
    "open_catalog",
    "owed",
    "plan_bins",
    "result_from_json",
    "run_bin",
    "run_here",
    "run_local",
    "show",
    "verify",
]
