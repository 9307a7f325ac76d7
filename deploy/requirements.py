"""requirements.py main | spark: the libraries that pyproject.toml asks for, one per line."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("/source/pyproject.toml").read_text(encoding="utf-8"))["project"]
extra = project["optional-dependencies"]
print("\n".join(project["dependencies"] if sys.argv[1] == "main" else extra[sys.argv[1]]))
