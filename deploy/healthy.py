"""healthy.py ready PORT | joined: how a container is asked whether it is well; 0 means yes.

`ready` asks the HTTP server on PORT of this container. `joined` asks the manager whether the
processor that runs here, named after its container, belongs to the cluster; a manager that is away
is not the processor's fault, which goes on joining.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

TIMEOUT_S = 5.0


def main() -> int:
    """The exit code."""
    what, *rest = sys.argv[1:]
    if what == "ready":
        path = rest[1] if len(rest) > 1 else "/readyz"
        return 0 if _get(f"http://127.0.0.1:{rest[0]}{path}") is not None else 1
    answer = _get(f"{os.environ['DOVETAIL_URL']}/v1/cluster", token=True)
    if answer is None:
        return 0
    name = socket.gethostname()
    members = json.loads(answer)["processors"]
    states = [p["state"] for p in members if p["name"].partition(".")[0] == name]  # of its workers
    print(f"{name} is {', '.join(states) or 'not known to the manager'}")
    return 0 if states and all(s in ("alive", "leaving") for s in states) else 1


def _get(url: str, *, token: bool = False) -> bytes | None:
    """What an address answers; None if nobody does or it is not well."""
    request = urllib.request.Request(url)
    if token:
        secret = Path(os.environ["DOVETAIL_TOKEN_FILE"]).read_text(encoding="utf-8").strip()
        request.add_header("Authorization", f"Bearer {secret}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            body: bytes = response.read()
            return body
    except urllib.error.HTTPError as e:
        print(e)
        if token:
            raise
        return None
    except OSError as e:
        print(e)
        return None


if __name__ == "__main__":
    sys.exit(main())
