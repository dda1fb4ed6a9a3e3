"""Figures that compare methods: final results and learning curves."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kernelmesh_experiments.report import COLORS, style_of

__all__ = ["draw_bars", "draw_paths"]


def draw_bars(lines: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Accuracy and memory of every method, ours in a color of their own."""
    figure = Figure(figsize=(11, 0.45 * len(lines) + 1.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    names = [line["method"] for line in lines]
    colors = [COLORS[0] if "kernelmesh" in name else COLORS[1] for name in names]
    left.barh(names, [100 * line["accuracy_worst"] for line in lines], color=colors)
    right.barh(names, [line["stored_floats"] for line in lines], color=colors)
    right.set_xscale("log")
    left.invert_yaxis()
    left.set(xlabel="held-out accuracy of the worst agent, %")
    right.set(xlabel="floats that one agent stores")
    for axes in (left, right):
        axes.grid(alpha=0.3, axis="x")
    figure.suptitle(title)
    return figure


_QUANTITIES = {
    "samples": "samples seen, per agent",
    "points": "points, landmarks, features or atoms kept in the end",
    "cpu_seconds": "CPU seconds",
}
_DEEPEST = 20  # percentage points below the best that are shown


def draw_paths(lines: Sequence[Mapping[str, Any]], title: str, networks: Collection[str]) -> Figure:
    """Accuracy against samples seen, points kept and CPU time: learners in one place above, networks below."""
    figure = Figure(figsize=(15, 9), layout="constrained")
    panels = figure.subplots(2, len(_QUANTITIES), sharex="col", sharey=True)
    alone = [line for line in lines if line["method"] not in networks]
    together = [line for line in lines if line["method"] in networks]
    for row, some, place in zip(panels, (alone, together), ("all data in one place", "networks"), strict=True):
        for axes, (quantity, label) in zip(row, _QUANTITIES.items(), strict=True):
            _draw_one(axes, some, quantity)
            axes.set(xlabel=label, xscale="log")
            axes.grid(alpha=0.3, which="both")
        row[0].set(ylabel=f"{place}: held-out accuracy, mean, %")
        if some:
            row[-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    if lines:
        best = 100 * max(line["accuracy_mean"] for line in lines)
        panels[0][0].set_ylim(best - _DEEPEST, best + 1)
    figure.suptitle(f"{title} (clipped at {_DEEPEST} percentage points below the best)")
    return figure


def _draw_one(axes: Axes, lines: Sequence[Mapping[str, Any]], quantity: str) -> None:
    names = dict.fromkeys(line["method"] for line in lines)
    ours_first = sorted(names, key=lambda name: "kernelmesh" not in name)
    for index, name in enumerate(ours_first):
        path = [line for line in lines if line["method"] == name]
        if quantity == "points":
            path = path[-1:]
        look = style_of(index) | ({"fillstyle": "none"} if index >= len(COLORS) else {})
        axes.plot([line[quantity] for line in path], [100 * line["accuracy_mean"] for line in path], **look, label=name)
