"""The table of all settings of an agent's file, from the schema that reads the files: docs/reference/settings.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernelmesh.deploy.sections import SECTIONS
from kernelmesh.deploy.tables import declared
from kernelmesh.deploy.template import toml
from kernelmesh.registry import kinds
from kernelmesh.schema import Setting, settings_of

__all__ = ["settings_table"]


def settings_table() -> str:
    """All settings of an agent's file as a table in Markdown."""
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *_rows()])


def _rows() -> Iterator[str]:
    for name, section in SECTIONS.items():
        doc = (section.__doc__ or "").strip().splitlines()[0]
        yield f"| **{f'`[{name}]`' if name else 'top of the file'}** | | {_escaped(doc)} |"
        for setting in settings_of(section).values():
            yield _row(setting)
            if setting.role == "stream":
                for kind, options in _own("stream").items():
                    yield from (_row(option, f' with `kind = "{kind}"`') for option in settings_of(options).values())
        if name == "model":
            choice = "; ".join(_kinds("schedule"))
            yield f'| **a schedule** | | a number, or a table such as `{{ kind = "InverseRoot", scale = 2.0 }}`: {choice} |'


def _own(role: str) -> dict[str, Any]:
    """The kinds that come with kernelmesh, which are those that its documentation is about."""
    return {name: kind for name, kind in kinds(role).items() if kind.__module__.startswith("kernelmesh.")}


def _row(setting: Setting, suffix: str = "") -> str:
    if setting.required:
        default = f"required, but {setting.unset}" if setting.unset else "required"
    elif setting.unset or setting.default in (None, ()):
        default = setting.unset or "none"
    else:
        default = f"`{toml(setting.default)}`"
    meaning = setting.doc
    if setting.role == "stream":
        meaning += ": " + ", ".join(f"`{kind}`" for kind in _own("stream"))
    elif setting.role not in (None, "schedule"):
        meaning += f". Example: `{setting.example}`. Kinds: " + "; ".join(_kinds(str(setting.role)))
    return f"| `{setting.name}`{suffix} | {_escaped(default)} | {_escaped(meaning)} |"


def _kinds(role: str) -> Iterator[str]:
    """Each kind of a role with its options and their defaults."""
    for name, kind in _own(role).items():
        options = [_option(option) for option in declared(kind).values()]
        yield f"`{name}`" + (f" ({', '.join(options)})" if options else "")


def _option(option: Setting) -> str:
    default: Any = option.default
    return f"`{option.name}`" if option.required else f"`{option.name}` {'none' if default is None else toml(default)}"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
