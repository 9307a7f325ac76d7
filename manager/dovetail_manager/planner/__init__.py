"""SQL in, plan out. Read `plan` first: it walks through the other modules in order."""

from dovetail_manager.planner.explain import explain, explain_dict
from dovetail_manager.planner.plan import plan_query

__all__ = ["explain", "explain_dict", "plan_query"]
