"""requirements.py [main | build | an extra | a group …]: the libraries that pyproject.toml names.

One a line; without a name all of them. Which versions are installed is what constraints.txt says.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

document = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))
lists = {
    "main": document["project"]["dependencies"],
    "build": document["build-system"]["requires"],
    **document["project"]["optional-dependencies"],
    **document["dependency-groups"],
}
for name in sys.argv[1:] or lists:
    print("\n".join(lists[name]))
