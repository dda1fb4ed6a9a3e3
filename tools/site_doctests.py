"""An extension of griffe: examples in docstrings that stand outside a section `Examples` are shown as code, too."""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["Doctests", "fenced"]

_EXAMPLE = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)


class Doctests(griffe.Extension):
    """Changes every docstring as it is loaded."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of one object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    r"""A docstring whose examples are blocks of code, up to the first section, which is read as one.

    >>> fenced("One.\n\n>>> 1\n1")
    'One.\n\n```pycon\n>>> 1\n1\n```'
    """
    found = re.search(r"^\w[\w ]*\n-{3,}$", text, re.MULTILINE)
    end = found.start() if found else len(text)
    return _EXAMPLE.sub(lambda example: f"```pycon\n{example[0].rstrip()}\n```", text[:end]) + text[end:]
