"""The comparison as a picture. Matplotlib draws it, which only this needs: an extra."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from proto.errors import InvalidRequest
from router.cli.sim.fleet import Result

SUFFIXES = (".png", ".svg", ".pdf")


def check(path: Path) -> None:
    """InvalidRequest if `draw` could not draw there; before minutes are spent on what to draw."""
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidRequest(f"--plot: expected a file ending in {', '.join(SUFFIXES)}, got {path}")
    if not path.parent.is_dir():
        raise InvalidRequest(f"--plot: there is no directory {path.parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidRequest('--plot needs matplotlib: install the extra "plot" of this package')


def draw(path: Path, title: str, results: Mapping[str, Result]) -> None:
    """Three bar charts side by side, a bar a policy."""
    from matplotlib.figure import Figure

    charts = {
        "prompt tokens cached, %": [100 * result.hit_rate for result in results.values()],
        "mean time to first token, s": [result.ttft_mean_s for result in results.values()],
        "99th percentile, s": [result.ttft_p99_s for result in results.values()],
    }
    figure = Figure(figsize=(12, 1.2 + 0.4 * len(results)), layout="constrained")
    figure.suptitle(title)
    for place, (axes, (label, values)) in enumerate(
        zip(figure.subplots(1, len(charts), sharey=True), charts.items(), strict=True)
    ):
        bars = axes.barh(list(results), values, color=f"C{place}")
        axes.bar_label(bars, fmt="%.3g", padding=3)
        axes.set_xlabel(label)
        axes.margins(x=0.15)
    axes.invert_yaxis()
    try:
        figure.savefig(path)
    except OSError as error:
        raise InvalidRequest(f"--plot: {error}") from error
