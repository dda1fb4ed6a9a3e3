"""The files that make up the page: our own, and plotly's JavaScript from its wheel. Nothing is loaded from elsewhere."""

from __future__ import annotations

import importlib.util
from functools import cache
from importlib import resources
from pathlib import Path

from kernelmesh.errors import MissingExtra

__all__ = ["SCRIPTS", "find", "page", "plotly", "script", "style", "template"]

SCRIPTS = ("data.js", "draw.js", "network.js", "curves.js", "function.js", "time.js", "app.js")
"""In the order in which they are loaded."""
_PLOTLY = "plotly.min.js"


def _read(name: str) -> str:
    return (resources.files("kernelmesh.dashboard") / "page" / name).read_text(encoding="utf-8")


@cache
def page() -> str:
    """The page, with styles and scripts loaded from the same server."""
    scripts = "\n".join(
        [f'<script src="static/{_PLOTLY}" id="plotly" async></script>']
        + [f'<script src="static/{name}" defer></script>' for name in SCRIPTS]
    )
    return (
        _read("page.html")
        .replace("<!-- styles -->", '<link rel="stylesheet" href="static/style.css">')
        .replace("<!-- scripts -->", scripts)
    )


def style() -> str:
    """The styles of the page."""
    return _read("style.css")


def script() -> str:
    """All scripts of the page except plotly's, as one text."""
    return "\n".join(_read(name) for name in SCRIPTS)


def template() -> str:
    """The page without styles and scripts."""
    return _read("page.html")


def plotly() -> Path:
    """The path of plotly's JavaScript, found without importing plotly, which is slow."""
    try:
        found = importlib.util.find_spec("plotly")
    except ModuleNotFoundError:
        found = None
    places = found.submodule_search_locations if found is not None else None
    for place in places or ():
        file = Path(place) / "package_data" / _PLOTLY
        if file.is_file():
            return file
    raise MissingExtra("the dashboard's curves", "dashboard")


def find(name: str) -> Path | tuple[str, int, None, str] | None:
    """A file of the page by name: its path, or its contents as the arguments of a response."""
    if name == _PLOTLY:
        return plotly()
    if name == "style.css":
        return style(), 200, None, "text/css"
    return (_read(name), 200, None, "text/javascript") if name in SCRIPTS else None
