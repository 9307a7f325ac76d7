"""REST: the verbs of `AdminService` over HTTP, with rows and results as Arrow or JSON.

Read `app` for the paths, `guards` for who is let in, `data_plane` for how rows and results pass
through. Everything that crosses is a model (`bodies`, `answers`) or checked Arrow; every refusal
has the body of `refusals`.
"""

from dovetail_manager.admin.rest.server import RestServer, RestSettings, serve

__all__ = ["RestServer", "RestSettings", "serve"]
