"""Lines over time, as a PNG."""

from __future__ import annotations

from pathlib import Path

from dovetail_bench.experiments.experiment import Experiment
from dovetail_proto.errors import OutputError


def plot_lines(
    experiment: Experiment,
    path: Path,
    *,
    column: str,
    label: str,
    scale: float,
    over: str = "seconds",
    along: str = "seconds of the run (input arrives at 1000 × the paper's rate)",
) -> None:
    """One line per series: `column` × `scale` over time. OutputError if it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for series in dict.fromkeys(row["series"] for row in experiment.rows):
        points = [r for r in experiment.rows if r["series"] == series]
        axes.plot([p[over] for p in points], [p[column] * scale for p in points], label=series)
    axes.set_xlabel(along)
    axes.set_ylabel(label)
    axes.set_title(f"{experiment.name}: {experiment.title}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=80, metadata={"Software": None})
    except OSError as e:
        raise OutputError(
            f"the plot cannot be written to {str(path)!r}: {e.strerror}",
            remedy="name another file with --plot",
        ) from e


def plot_minutes(
    experiment: Experiment,
    path: Path,
    *,
    column: str = "results",
    label: str = "results so far (millions)",
) -> None:
    """One line per series: `column` in millions over the paper's minutes."""
    plot_lines(
        experiment,
        path,
        column=column,
        label=label,
        scale=1e-6,
        over="paper_minutes",
        along="minutes of the paper (half a second each, here)",
    )
