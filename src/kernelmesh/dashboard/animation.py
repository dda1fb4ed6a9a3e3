"""How functions come to agree, as an animated GIF: several agents side by side, each with its own samples."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from kernelmesh.dashboard.palette import Color, blend, class_colors, rgb
from kernelmesh.dashboard.portraits import Canvas, class_image, value_image
from kernelmesh.dashboard.recording import Recording, Snapshot
from kernelmesh.errors import MissingExtra

__all__ = ["animation"]

_AGENTS, _FRAMES = 8, 40
_SIDE, _GAP, _HEAD, _LABEL = 168, 12, 40, 20
_MILLISECONDS, _LAST = 160, 2500
_PAPER: Color = (255, 255, 255)
_INK: Color = (28, 32, 38)


def animation(recording: Recording, *, agents: int = _AGENTS, frames: int = _FRAMES) -> bytes | None:
    """A GIF of the decision regions or surfaces of several agents over the run; None if there are no such pictures."""
    canvas = Canvas(recording.subject)
    snapshots = recording.snapshots
    if canvas.kind not in ("regions", "surface") or not snapshots:
        return None
    chosen = range(min(len(recording.subject.names), agents))
    pictures = [_picture(recording, canvas, chosen, snapshots[n]) for n in _early(len(snapshots), frames)]
    out = io.BytesIO()
    times = [_MILLISECONDS] * (len(pictures) - 1) + [_LAST]
    pictures[0].save(out, "GIF", save_all=True, append_images=pictures[1:], duration=times, loop=0, optimize=True)
    return out.getvalue()


def _early(count: int, limit: int) -> list[int]:
    """Which snapshots to show: more of the early ones, because most changes happen early."""
    places = np.linspace(0, 1, min(count, limit)) ** 1.6
    return sorted(set(np.round(places * (count - 1)).astype(int).tolist()))


def _picture(recording: Recording, canvas: Canvas, agents: Any, snapshot: Snapshot) -> Any:
    """One frame."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ModuleNotFoundError as error:
        raise MissingExtra("animations", "dashboard") from error
    columns = min(len(agents), 4)
    rows = -(-len(agents) // columns)
    size = (columns * (_SIDE + _GAP) + _GAP, _HEAD + rows * (_SIDE + _LABEL + _GAP))
    picture = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(picture)
    large, small = ImageFont.load_default(16), ImageFont.load_default(12)
    totals = min(recording.frames, key=lambda frame: abs(frame.round - snapshot.round)).totals
    draw.text((_GAP, 12), f"{snapshot.samples:,} samples per agent", fill=_INK, font=large)
    apart = totals["disagreement"]
    facts = f"disagreement {apart:,.0f}" if apart >= 10 else f"disagreement {apart:.2g}"
    if recording.subject.classifies:
        facts = f"worst accuracy {totals['score_worst']:.0%},  {facts}"
    draw.text((size[0] - _GAP, 12), facts, fill=_INK, font=large, anchor="ra")
    for n, agent in enumerate(agents):
        left, top = _GAP + n % columns * (_SIDE + _GAP), _HEAD + n // columns * (_SIDE + _LABEL + _GAP)
        tile = _tile(recording, canvas, snapshot, agent)
        picture.paste(tile.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC), (left, top))
        _draw_samples(draw, recording, canvas, agent, (left, top))
        label = f"agent {recording.subject.names[agent]}{_sees(recording, agent)}"
        draw.text((left, top + _SIDE + 3), label, fill=_INK, font=small)
    return picture.quantize(96, dither=Image.Dither.NONE)


def _tile(recording: Recording, canvas: Canvas, snapshot: Snapshot, agent: int) -> Any:
    from PIL import Image

    outputs = snapshot.function(agent, recording.subject.kernel)(canvas.grid)
    if canvas.kind == "regions":
        data = class_image(outputs, recording.subject.loss, canvas.size)
    else:
        data = value_image(outputs[:, 0], *canvas.values, canvas.size)
    tile = Image.open(io.BytesIO(data)).convert("RGBA")
    paper = Image.new("RGBA", tile.size, (*_PAPER, 255))
    return Image.alpha_composite(paper, tile).convert("RGB")


def _draw_samples(draw: Any, recording: Recording, canvas: Canvas, agent: int, corner: tuple[int, int]) -> None:
    """The agent's own samples, darker than the regions."""
    subject = recording.subject
    if not subject.classifies:
        return
    rows = subject.own_agents == agent
    points, labels = subject.own_points[rows][:60], subject.own_targets[rows][:60].astype(int)
    colors = [blend(rgb(color), (0, 0, 0), 0.35) for color in class_colors(len(subject.classes))]
    left, right, bottom, top = canvas.box
    for (x, y), label in zip(points, labels, strict=True):
        at = corner[0] + (x - left) / (right - left) * _SIDE, corner[1] + (top - y) / (top - bottom) * _SIDE
        draw.ellipse((at[0] - 1.6, at[1] - 1.6, at[0] + 1.6, at[1] + 1.6), fill=colors[label])


def _sees(recording: Recording, agent: int) -> str:
    seen = recording.subject.seen
    classes = [recording.subject.classes[c] for c in np.flatnonzero(seen[agent])] if len(seen) else []
    if not classes or len(classes) == len(recording.subject.classes):
        return ""
    return f" sees class {classes[0]} only" if len(classes) == 1 else f" sees classes {', '.join(classes)}"
