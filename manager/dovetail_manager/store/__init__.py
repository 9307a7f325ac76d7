"""The manager's truth: what a manager must know to take over where another one stopped.

`interface` has the promises, `fencing` the rules that both implementations apply, `sqlite_store`
and `redis_store` are the two of them, `opening` turns an address into one.
"""

from dovetail_manager.store.interface import Leadership, Store
from dovetail_manager.store.opening import open_store

__all__ = ["Leadership", "Store", "open_store"]
