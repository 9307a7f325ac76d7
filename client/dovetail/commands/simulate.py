"""`dovetail simulate`: how the adaptation policies would behave on a cluster of any size."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.tables import print_table
from dovetail_proto.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from dovetail.load_model import ModelSettings, Trace

POLICIES_DEFAULT = ["none", "lazy-disk", "active-disk"]
"""What is compared unless told otherwise."""


def simulate(
    *,
    processors: Annotated[int, typer.Option(min=1, help="Number of processors.")] = 1000,
    groups: Annotated[int, typer.Option(min=1, help="Number of partition groups.")] = 500_000,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Policy to model; repeat to compare. Default: none, lazy-disk, active-disk.",
        ),
    ] = None,
    workload: Annotated[
        str, typer.Option(help="skewed, alternating (by a factor of 10), drifting or bursty.")
    ] = "skewed",
    intervals: Annotated[int, typer.Option(min=1, help="Adaptation intervals to model.")] = 40,
    state_ratio: Annotated[
        float, typer.Option(help="State at the end, relative to the memory of the cluster.")
    ] = 1.5,
    seed: Annotated[int, typer.Option(help="Seed of the load.")] = 1,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw memory, moves and output over time.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Model a cluster under load and compare policies: spread of memory, moves, pushes, output.

    The decisions are the real ones; rows and machines are numbers. Time is virtual: a run of
    1000 processors and 500 000 groups takes about half a minute per policy.
    """
    from dovetail.load_model import LoadModel, ModelSettings

    names = policy or POLICIES_DEFAULT
    if len(set(names)) != len(names):
        raise ConfigError(f"policies {', '.join(names)} repeat one", remedy="name each once")
    base = ModelSettings(
        processors=processors,
        groups=groups,
        intervals=intervals,
        workload=workload,
        state_ratio=state_ratio,
        seed=seed,
    )
    models = [replace(base, policy=name) for name in names]
    for model in models:
        model.check()
    if plot is not None and not plot.parent.is_dir():
        raise OutputError(f"folder {plot.parent} does not exist", remedy="create it")
    traces = [LoadModel(model).run() for model in models]
    if plot is not None:
        _plot(base, traces, plot)
    if as_json:
        settings = asdict(base)
        del settings["policy"]
        policies = [_summary(t) | asdict(t) for t in traces]
        print(json.dumps({"settings": settings, "policies": policies}))
    else:
        _print(base, traces)


def _summary(trace: Trace) -> dict[str, float]:
    half = len(trace.used_spread) // 2
    settled = trace.used_spread[half:]
    return {
        "spread_mean_late": sum(settled) / len(settled),
        "used_max": max(trace.used_max),
        "moved_bytes_total": sum(trace.moved_bytes),
        "moves_total": sum(trace.moves),
        "pushed_bytes_total": sum(trace.pushed_bytes),
        "forced_bytes_total": sum(trace.forced_bytes),
        "held_up_bytes_total": sum(trace.held_up_bytes),
        "produced_total": sum(trace.produced),
        "decision_cpu_s_max": max(trace.decision_cpu_s),
    }


def _print(base: ModelSettings, traces: list[Trace]) -> None:
    heads = ("policy", "spread", "moves", "moved", "again", "pushed", "ordered", "kept out")
    rows = []
    best = max(sum(t.produced) for t in traces) or 1.0
    for trace in traces:
        s = _summary(trace)
        rows.append(
            (
                trace.policy,
                f"{s['spread_mean_late']:.3f}",
                round(s["moves_total"]),
                f"{s['moved_bytes_total'] / 1e9:.1f}",
                trace.moved_again,
                f"{s['pushed_bytes_total'] / 1e9:.1f}",
                f"{s['forced_bytes_total'] / 1e9:.1f}",
                f"{s['held_up_bytes_total'] / 1e9:.1f}",
                f"{s['produced_total'] / best:.0%}",
                s["decision_cpu_s_max"],
            )
        )
    print(
        f"{base.processors} processors, {base.groups} groups, {base.workload} load, state "
        f"{base.state_ratio:g} × memory, {base.intervals} intervals, seed {base.seed}\n"
    )
    print_table((*heads, "output", "decide"), rows, spare=("decide", "again", "ordered"))
    print(
        "\nspread: standard deviation of memory used, as share of the limit, second half\n"
        "moved, pushed, ordered (pushed by the manager's order), kept out (memory full): GB\n"
        "again: groups moved twice within five intervals · decide: longest decision, CPU s\n"
        "output: combinations before the clean-up, relative to the best policy here"
    )


def _plot(base: ModelSettings, traces: list[Trace], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from itertools import accumulate

    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, 1, figsize=(9, 11), sharex=True)
    intervals = range(1, base.intervals + 1)
    for trace in traces:
        [line] = axes[0].plot(intervals, trace.used_mean, label=trace.policy)
        axes[0].fill_between(
            intervals, trace.used_min, trace.used_max, color=line.get_color(), alpha=0.15
        )
        axes[1].plot(intervals, [b / 1e9 for b in accumulate(trace.moved_bytes)])
        axes[2].plot(intervals, list(accumulate(trace.produced)))
    axes[0].set_ylabel("memory used / limit\n(mean; band: least to most)")
    axes[0].legend()
    axes[1].set_ylabel("moved, GB in all")
    axes[2].set_ylabel("combinations in all")
    axes[2].set_xlabel("interval")
    figure.suptitle(
        f"{base.processors} processors, {base.groups} groups, {base.workload} load, "
        f"state {base.state_ratio:g} × memory"
    )
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=75)
    except (OSError, ValueError) as e:
        raise OutputError(
            f"cannot draw to {path}: {e}", remedy="use a .png, .svg or .pdf file"
        ) from e
    finally:
        plt.close(figure)
