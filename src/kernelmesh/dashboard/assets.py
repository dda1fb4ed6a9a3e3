"""The files that make up the page: our own, and plotly's JavaScript from its wheel. Nothing is loaded from elsewhere."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path

from kernelmesh.errors import MissingExtra

__all__ = ["PLOTLY", "SCRIPTS", "page", "plotly", "read"]

SCRIPTS = ("data.js", "draw.js", "network.js", "curves.js", "function.js", "time.js", "app.js")
"""In the order in which they are loaded."""
PLOTLY = "plotly.min.js"


def read(name: str) -> str:
    """The text of one of our own files."""
    return (Path(__file__).parent / "page" / name).read_text(encoding="utf-8")


def page(*, styles: str = "", data: str = "", scripts: str = "") -> str:
    """The page with this HTML in its places; by default, styles and scripts are loaded from the same server."""
    names = [f'<script src="static/{PLOTLY}" id="plotly" async></script>']
    names += [f'<script src="static/{name}" defer></script>' for name in SCRIPTS]
    text = read("page.html").replace("<!-- styles -->", styles or '<link rel="stylesheet" href="static/style.css">')
    return text.replace("<!-- data -->", data).replace("<!-- scripts -->", scripts or "\n".join(names))


def plotly() -> Path:
    """The path of plotly's JavaScript, found without importing plotly, which is slow."""
    found = None
    with contextlib.suppress(ModuleNotFoundError):
        found = importlib.util.find_spec("plotly")
    for place in (found and found.submodule_search_locations) or ():
        if (file := Path(place) / "package_data" / PLOTLY).is_file():
            return file
    raise MissingExtra("the dashboard's curves", "dashboard")
