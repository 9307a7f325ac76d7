"""The command line: `dovetail COMMAND …`. Start reading at `commands/run.py`.

Every command raises DovetailError for what it refuses; this module turns that into one line with
the remedy on standard error, a JSON object on standard output where `--json` was given, and the
error's exit code. Whatever a command needs beyond its flags it imports when it is called, so that
`dovetail --help` starts at once. Other packages add commands by entry points (`add_plugins`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

import typer

from dovetail.commands import (
    certs,
    cleanup,
    config,
    doctor,
    generate,
    kernels,
    look,
    owed,
    restart,
    results,
    run,
    scale,
    serve,
    simulate,
    steer,
    stream,
    submit,
    up,
)
from dovetail.garbage import collect_seldom
from dovetail_proto.errors import ConfigError, DovetailError, Interrupted
from dovetail_proto.kernel_cache import cache_folder, tell_before_compiling

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

app = typer.Typer(
    name="dovetail",
    help="Joins several streams exactly, even when the join's state outgrows memory.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
FILES, CLUSTER, LOOK, STEER, SERVE, MORE = (
    "Files to files",
    "A cluster",
    "Look at a cluster",
    "Steer a cluster",
    "Services",
    "More",
)
"""How `--help` groups the commands."""

PLUGINS = "dovetail.commands"
"""The group of entry points by which other packages add commands."""

for name, command, panel in (
    ("run", run.run, FILES),
    ("cleanup", cleanup.cleanup, FILES),
    ("owed", owed.owed, FILES),
    ("up", up.up, CLUSTER),
    ("submit", submit.submit, CLUSTER),
    ("feed", stream.feed, CLUSTER),
    ("wait", submit.wait, CLUSTER),
    ("results", results.results, CLUSTER),
    ("close", submit.close, CLUSTER),
    ("drop", submit.drop, CLUSTER),
    ("restart", restart.restart, CLUSTER),
    ("down", up.down, CLUSTER),
    ("status", look.status, LOOK),
    ("top", look.top, LOOK),
    ("partitions", look.partitions, LOOK),
    ("moves", look.moves, LOOK),
    ("adaptations", look.adaptations, LOOK),
    ("move", steer.move, STEER),
    ("pin", steer.pin, STEER),
    ("unpin", steer.unpin, STEER),
    ("pause", steer.pause, STEER),
    ("resume", steer.resume, STEER),
    ("rebalance", steer.rebalance, STEER),
    ("leave", steer.leave, STEER),
    ("scale", scale.scale, STEER),
    ("manager", serve.manager, SERVE),
    ("processor", serve.processor, SERVE),
    ("generate", generate.generate, MORE),
    ("simulate", simulate.simulate, MORE),
    ("doctor", doctor.doctor, MORE),
    ("compile", kernels.compile_kernels, MORE),
):
    app.command(name, rich_help_panel=panel)(command)
app.add_typer(stream.stream, name="stream", rich_help_panel=CLUSTER)
app.add_typer(steer.policy, name="policy", rich_help_panel=STEER)
app.add_typer(config.config, name="config", rich_help_panel=MORE)
app.add_typer(certs.certs, name="certs", rich_help_panel=SERVE)


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and end."),
) -> None:
    if version:
        from importlib.metadata import version as version_of

        print(version_of("dovetail"))
        raise typer.Exit


def add_plugins(found: Iterable[EntryPoint]) -> None:
    """Add the commands of other packages: entry points, each a Typer application by its name."""
    for plugin in found:
        if plugin.name not in _names():
            app.add_typer(plugin.load(), name=plugin.name, rich_help_panel=MORE)


def _names() -> set[str | None]:
    return {c.name for c in app.registered_commands} | {str(g.name) for g in app.registered_groups}


def main() -> NoReturn:
    """The `dovetail` program."""
    exit_code = 1

    def end_at_once() -> None:
        for written in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                written.flush()
        os._exit(exit_code)

    # The first that is registered is the last that is called, when all else is done. The
    # interpreter would take a third of a second to take down everything that was loaded.
    atexit.register(end_at_once)
    collect_seldom()
    # Before NumPy is loaded: no command does linear algebra, for which it would start threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sys.platform == "linux":
        # Before Arrow is loaded: its readers take their memory from the default pool, and this one
        # gives it back (see `dovetail_processor.allocators`).
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
    sys.meta_path.insert(0, _WithoutPandas())
    tell_before_compiling(_say_compiling)
    exit_code = run_command(sys.argv[1:])
    sys.exit(exit_code)


class _WithoutPandas:
    """Keeps pandas out: Arrow loads it with the first array, which takes a quarter of a second.

    No command has a use for it, and Arrow is content where it is not installed.
    """

    def find_spec(self, name: str, *_: object) -> None:
        """See `importlib.abc.MetaPathFinder`."""
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not used on the command line", name=name)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; whatever is refused is told, not raised."""
    as_json = "--json" in arguments
    if not _names().intersection(arguments[:1]):  # looking for them takes a moment
        from importlib.metadata import entry_points

        add_plugins(entry_points(group=PLUGINS))
    try:
        outcome = app(args=list(arguments) or ["--help"], standalone_mode=False)
    except DovetailError as e:
        return _tell(e, as_json=as_json)
    except typer.TyperException as e:
        words = [a for a in arguments[:1] if a in _names()]
        help_command = " ".join(["dovetail", *words, "--help"])
        message = " ".join(e.format_message().split()).rstrip(".")
        return _tell(ConfigError(message, remedy=f"see `{help_command}`"), as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        return _tell(Interrupted("stopped before anything was done"), as_json=as_json)
    except BrokenPipeError:
        # The reader of standard output has gone, as in `dovetail owed DIR | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as e:
        traceback.print_exc()
        defect = DovetailError(
            f"internal: {type(e).__name__}: {e}",
            remedy="this is a defect of Dovetail; please report it with the lines above",
        )
        return _tell(defect, as_json=as_json)
    return outcome if isinstance(outcome, int) else 0


def _say_compiling() -> None:
    print(
        "compiling the join's kernels, which takes about half a minute and is done once; they are "
        f"kept in {cache_folder()}",
        file=sys.stderr,
        flush=True,
    )


def _tell(error: DovetailError, *, as_json: bool) -> int:
    if os.environ.get("DOVETAIL_DEBUG") == "1":
        traceback.print_exception(error)
    print(f"error: {' '.join(error.message.split())}", file=sys.stderr)
    if error.remedy:
        print(f"  {error.remedy}", file=sys.stderr)
    if as_json:
        import json

        print(json.dumps({"error": as_dict(error)}, default=str))
    return error.exit_code


def as_dict(error: DovetailError) -> dict[str, object]:
    """An error as `--json` shows it."""
    return {
        "code": error.code,
        "message": error.message,
        "remedy": error.remedy,
        "fault": error.fault.value,
        "retry": error.retry,
        "exit_code": error.exit_code,
        "details": error.details,
    }
