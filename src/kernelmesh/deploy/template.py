"""Writes an agent's TOML file with a comment for every setting."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelmesh.deploy.sections import SECTIONS
from kernelmesh.registry import describe, kinds
from kernelmesh.schema import Setting, settings_of

__all__ = ["render", "toml"]


def toml(value: Any) -> str:
    """A value in TOML; one of a registered kind becomes an inline table of the settings that differ from its defaults.

    >>> from kernelmesh import Penalty, Doubling
    >>> toml(Penalty(coupling=Doubling(start=0.01, every=200)))
    '{ kind = "Penalty", coupling = { kind = "Doubling", start = 0.01, every = 200 } }'
    """
    if isinstance(value, Path):
        value = value.as_posix()
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    kind = describe(value)["kind"]
    if kind == "Constant":
        return toml(value.value)
    given = {
        field.name: getattr(value, field.name)
        for field in dataclasses.fields(value)
        if field.init and getattr(value, field.name) != field.default
    }
    return f"{{ {', '.join([f'kind = {toml(kind)}', *(f'{key} = {toml(item)}' for key, item in given.items())])} }}"


def render(title: str, values: Mapping[str, Mapping[str, Any]], *, stream_kind: str) -> str:
    """A file with these values, by section and key; other settings appear as comments, with their default or an example."""
    lines = [f"# {line}" for line in title.splitlines()]
    for name, section in SECTIONS.items():
        if name == "tls" and name not in values:
            continue
        lines.append("")
        if name:
            lines.append(f"[{name}]  # {_decapitalized(section.__doc__ or '')}")
        lines += _section(section, {**values.get(name, {})}, stream_kind)
    return "\n".join(lines) + "\n"


def _decapitalized(doc: str) -> str:
    first = doc.strip().splitlines()[0].rstrip(".")
    return first if first[:2].isupper() else first[:1].lower() + first[1:]


def _section(section: type[Any], values: dict[str, Any], stream_kind: str) -> Iterator[str]:
    for setting in settings_of(section).values():
        if setting.role == "stream":
            choice = ", ".join(kinds("stream"))
            yield f"kind = {toml(stream_kind)}  # {choice}; the settings up to points belong to this kind"
            for option in settings_of(kinds("stream")[stream_kind]).values():
                yield _line(option, values)
        else:
            yield _line(setting, values)
    for key, value in values.items():  # of a section whose keys are free
        yield f"{key} = {toml(value)}"


def _line(setting: Setting, values: dict[str, Any]) -> str:
    comment = setting.doc
    if setting.name in values:
        return f"{setting.name} = {toml(values.pop(setting.name))}  # {comment}"
    shown = setting.example if setting.required or not (setting.default or setting.default == 0) else toml(setting.default)
    return f"# {setting.name} = {shown}  # {comment}"
