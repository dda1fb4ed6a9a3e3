"""How functions come to agree, as an animated GIF: several agents side by side, each with its own samples."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from kernelmesh.dashboard.palette import blend, class_colors, rgb
from kernelmesh.dashboard.portraits import Canvas, pillow
from kernelmesh.dashboard.recording import Recording, Snapshot

__all__ = ["animation"]

_SIDE, _GAP, _HEAD, _LABEL = 168, 12, 40, 20  # pixels: of a tile, around it, above all, below each
_PAPER, _INK = (255, 255, 255), (28, 32, 38)


def animation(
    recording: Recording, *, agents: int = 8, frames: int = 40, milliseconds: int = 160, last: int = 2500
) -> bytes | None:
    """A GIF of the decision regions or surfaces of several agents over the run; None if there are no such pictures.

    Each picture is shown for so many `milliseconds`, the `last` one longer.
    """
    canvas, snapshots = Canvas(recording.subject), recording.snapshots
    if not canvas.is_image or not snapshots:
        return None
    # more of the early snapshots, because most changes happen early
    places = np.linspace(0, 1, min(len(snapshots), frames)) ** 1.6
    chosen = sorted(set(np.round(places * (len(snapshots) - 1)).astype(int).tolist()))
    first, *rest = (_picture(recording, canvas, snapshots[n], agents) for n in chosen)
    out, times = io.BytesIO(), [*[milliseconds] * len(rest), last]
    first.save(out, "GIF", save_all=True, append_images=rest, duration=times, loop=0, optimize=True)
    return out.getvalue()


def _picture(recording: Recording, canvas: Canvas, snapshot: Snapshot, agents: int) -> Any:
    """One picture of the animation."""
    image, font = pillow("Image"), pillow("ImageFont").load_default
    subject = recording.subject
    count = min(len(subject.names), agents)
    columns = min(count, 4)
    size = (columns * (_SIDE + _GAP) + _GAP, _HEAD + -(-count // columns) * (_SIDE + _LABEL + _GAP))
    picture = image.new("RGB", size, _PAPER)
    draw = pillow("ImageDraw").Draw(picture)
    totals = min(recording.frames, key=lambda frame: abs(frame.round - snapshot.round)).totals
    apart = totals["disagreement"]
    facts = f"disagreement {apart:,.0f}" if apart >= 10 else f"disagreement {apart:.2g}"
    if subject.classifies:
        facts = f"worst accuracy {totals['score_worst']:.0%},  {facts}"
    draw.text((_GAP, 12), f"{snapshot.samples:,} samples per agent", fill=_INK, font=font(16))
    draw.text((size[0] - _GAP, 12), facts, fill=_INK, font=font(16), anchor="ra")
    for agent in range(count):
        left = _GAP + agent % columns * (_SIDE + _GAP)
        top = _HEAD + agent // columns * (_SIDE + _LABEL + _GAP)
        tile = image.open(io.BytesIO(canvas.image(snapshot.function(agent, subject.kernel)(canvas.grid)))).convert("RGBA")
        tile = image.alpha_composite(image.new("RGBA", tile.size, (*_PAPER, 255)), tile).convert("RGB")
        picture.paste(tile.resize((_SIDE, _SIDE), image.Resampling.BICUBIC), (left, top))
        _draw_samples(draw, canvas, agent, (left, top))
        label = f"agent {subject.names[agent]}{_sees(recording, agent)}"
        draw.text((left, top + _SIDE + 3), label, fill=_INK, font=font(12))
    return picture.quantize(96, dither=image.Dither.NONE)


def _draw_samples(draw: Any, canvas: Canvas, agent: int, corner: tuple[int, int]) -> None:
    """Some of the agent's own samples, darker than the regions."""
    subject, (left, right, bottom, top) = canvas.subject, canvas.box
    colors = [blend(rgb(color), (0, 0, 0), 0.35) for color in class_colors(len(subject.classes))]
    own = np.flatnonzero((subject.own_agents == agent) & subject.classifies)[:60]
    for (x, y), label in zip(subject.own_points[own], subject.own_targets[own].astype(int), strict=True):
        at = corner[0] + (x - left) / (right - left) * _SIDE, corner[1] + (top - y) / (top - bottom) * _SIDE
        draw.ellipse((at[0] - 1.6, at[1] - 1.6, at[0] + 1.6, at[1] + 1.6), fill=colors[label])


def _sees(recording: Recording, agent: int) -> str:
    subject = recording.subject
    classes = [subject.classes[c] for c in np.flatnonzero(subject.seen[agent])]
    if len(classes) == len(subject.classes):
        return ""
    return f" sees class {classes[0]} only" if len(classes) == 1 else f" sees classes {', '.join(classes)}"
