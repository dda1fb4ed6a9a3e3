"""The page as one self-contained file that needs no server and no network."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from kernelmesh.dashboard import assets
from kernelmesh.dashboard.sources import FolderSource, RecordedSource
from kernelmesh.dashboard.thinning import evenly
from kernelmesh.errors import UnreadableFile

__all__ = ["report_page", "write_report"]

_PORTRAITS = 900  # the number of pictures of functions in a report, over all agents
_FIGURE_BYTES = 3_000_000


def write_report(folders: list[Path], file: Path) -> Path:
    """Write the page of one run, or of two to compare, as a self-contained HTML file."""
    sources = [FolderSource(folder) for folder in folders]
    for news in (source.news() for source in sources):
        if news.status == "unreadable":
            raise UnreadableFile(news.message)
    file.write_text(report_page(sources), encoding="utf-8")
    return file


def report_page(sources: list[FolderSource]) -> str:
    """The page with data, styles and scripts inlined."""
    embedded = json.dumps([_embedded(source, len(sources)) for source in sources], default=str)
    page = assets.template()
    parts = {
        "<!-- styles -->": f"<style>\n{assets.style()}\n</style>",
        "<!-- data -->": f'<script type="application/json" id="embedded">{_inert(_no_nan(embedded))}</script>',
        "<!-- scripts -->": f"<script>{_closed(assets.plotly().read_text(encoding='utf-8'))}</script>\n"
        f"<script>\n{_closed(assets.script())}\n</script>",
    }
    for place, text in parts.items():
        page = page.replace(place, text)
    return page


def _embedded(source: FolderSource, runs: int) -> dict[str, Any]:
    """All data that a server would send."""
    about = {**source.describe(), "static": True}
    return {"about": about, "frames": source.frames(), "functions": _functions(source, runs), "images": _images(source)}


def _functions(source: RecordedSource, runs: int) -> list[dict[str, Any] | None]:
    """Every agent's function at evenly spaced snapshots."""
    snapshots = source.recording.snapshots if source.recording else ()
    agents = len(source.subject.names)
    if not snapshots or not agents:
        return []
    rounds = [snapshots[n].round for n in evenly(len(snapshots), max(_PORTRAITS // agents // runs, 2))]
    return [source.function(agent, number) for agent in range(agents) for number in rounds]


def _images(source: FolderSource) -> dict[str, str]:
    out, total = {}, 0
    for path in source.figures():
        data = path.read_bytes()
        total += len(data)
        if total <= _FIGURE_BYTES:
            out[path.name] = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return out


def _no_nan(text: str) -> str:
    """Replace infinity and NaN, which JSON does not have."""
    return json.dumps(json.loads(text, parse_constant=lambda _: None))


def _inert(text: str) -> str:
    """Escape JSON so that it cannot close the element that contains it."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _closed(script: str) -> str:
    """Escape a script so that it cannot close its element."""
    return re.sub(r"</(?=script)", r"<\\/", script, flags=re.IGNORECASE)
