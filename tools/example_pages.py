"""The examples as pages of the site: the docstring, the figure, and the cells of the script."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("weather_drift", "brain_network", "wearables")
_CELL = re.compile(r"^# %% (.*)$", re.MULTILINE)


def example_page(name: str) -> str:
    """A script of examples/ as Markdown; its figure is docs/examples/NAME.png."""
    source = (ROOT / f"examples/{name}.py").read_text(encoding="utf-8")
    title, _, body = (ast.get_docstring(ast.parse(source)) or "").partition("\n")
    parts = [f"# {name.replace('_', ' ').capitalize()}\n", title, body, f"![The figure that the script draws]({name}.png)\n"]
    cells = _CELL.split(source)[1:]
    for heading, code in zip(cells[::2], cells[1::2], strict=True):
        parts.append(f"## {heading.rstrip('.')}\n\n```python\n{code.strip()}\n```\n")
    return "\n".join(parts)
