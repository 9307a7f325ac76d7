"""Lines over the paper's minutes, as a PNG."""

from __future__ import annotations

from pathlib import Path

from dovetail_bench.experiments.experiment import Experiment
from dovetail_proto.errors import OutputError


def plot_lines(
    experiment: Experiment, path: Path, *, column: str, label: str, scale: float
) -> None:
    """One line per series: `column` × `scale` over time. OutputError if it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for total in experiment.totals:
        points = [r for r in experiment.rows if r["series"] == total["series"]]
        axes.plot(
            [p["seconds"] for p in points],
            [p[column] * scale for p in points],
            label=total["series"],
        )
    axes.set_xlabel("seconds of the run (input arrives at 1000 × the paper's rate)")
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
