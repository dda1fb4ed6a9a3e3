"""The page as one self-contained file that needs no server and no network."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

from kernelmesh.dashboard import assets
from kernelmesh.dashboard.sources import FolderSource
from kernelmesh.dashboard.tables import to_json
from kernelmesh.dashboard.thinning import evenly
from kernelmesh.errors import UnreadableFile

__all__ = ["write_report"]


def write_report(folders: list[Path], file: Path) -> Path:
    """Write the page of one run, or of two to compare, as a self-contained HTML file."""
    sources = [FolderSource(folder) for folder in folders]
    for news in (source.news() for source in sources):
        if news.status == "unreadable":
            raise UnreadableFile(news.message)
    embedded = to_json([_embedded(source, len(sources)) for source in sources]).decode()
    scripts = assets.plotly().read_text(encoding="utf-8"), "\n".join(map(assets.read, assets.SCRIPTS))
    page = assets.page(
        styles=f"<style>\n{assets.read('style.css')}\n</style>",
        data=f'<script type="application/json" id="embedded">{_inert(embedded)}</script>',
        scripts="\n".join(f"<script>\n{_closed(script)}\n</script>" for script in scripts),
    )
    file.write_text(page, encoding="utf-8")
    return file


def _embedded(source: FolderSource, runs: int, *, portraits: int = 900, figure_bytes: int = 3_000_000) -> dict[str, Any]:
    """What a server would send, within limits: agents' functions at evenly spaced snapshots, and the first figures."""
    shown = source.shown
    agents, snapshots = range(len(shown.subject.names)), shown.recording.snapshots
    rounds = [snapshots[n].round for n in evenly(len(snapshots), max(portraits // max(len(agents), 1) // runs, 2))]
    images, total = {}, 0
    for path in shown.documents.figures:
        data = path.read_bytes()
        total += len(data)
        if total <= figure_bytes:
            images[path.name] = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {
        "about": {**source.describe(), "static": True},
        "frames": source.frames(),
        "functions": [source.function(agent, number) for agent in agents for number in rounds],
        "images": images,
    }


def _inert(text: str) -> str:
    """Escape JSON so that it cannot close the element that contains it."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _closed(script: str) -> str:
    """Escape a script so that it cannot close its element."""
    return re.sub(r"</(?=script)", r"<\\/", script, flags=re.IGNORECASE)
