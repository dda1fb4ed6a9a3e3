"""The folder of a run: where its recording is, and the files that people read."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelmesh.dashboard.recording import FILE
from kernelmesh.errors import InvalidArgument, UnreadableFile, Verbatim

__all__ = ["Documents", "check_run", "find_recording", "parts_message", "run_of"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Documents:
    """The files of a run that people read."""

    summary: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    paragraphs: Sequence[str] = ()
    tables: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    """By name, up to 200 rows; the first row holds the column titles."""
    figures: Sequence[Path] = ()

    @classmethod
    def read(cls, folder: Path) -> Documents:
        """Read all files that exist; how a part of a run ended is recorded in the folder of the whole run."""
        notes, run = _json(folder / "report.json"), run_of(folder)
        tables = {name: folder / f"{Path(str(name)).name}.csv" for name in notes.get("printed", ())}
        return cls(
            summary=_json(run / "summary.json"),
            config=_json(run / "config.json"),
            paragraphs=[str(text) for text in notes.get("paragraphs", ())],
            tables={name: _csv(file)[:201] for name, file in tables.items() if file.is_file()},
            figures=sorted(path for path in folder.glob("*.png") if path.is_file()),
        )


def check_run(owner: str, folder: Path) -> None:
    """Reject a folder that was not written by a run."""
    if find_recording(folder) is None and not (folder / "summary.json").is_file():
        what = "has neither a recording nor a summary.json" if folder.is_dir() else "is not a folder"
        found, remedy = Verbatim(f"{str(folder)!r}, which {what}"), "`kernelmesh run NAME` writes such a folder"
        raise InvalidArgument(owner, "DIR", "be the folder of a run", found, remedy=remedy)


def find_recording(folder: Path) -> Path | None:
    """The recording of a run, or the newest of its parts."""
    if (folder / FILE).is_file():
        return folder / FILE
    return max(folder.glob(f"*/{FILE}"), key=lambda path: (path.stat().st_mtime, path), default=None)


def parts_message(folder: Path) -> str:
    """Which network is shown, if the folder is that of a run with several networks."""
    shown = find_recording(folder)
    parts = sorted(path.parent.name for path in folder.glob(f"*/{FILE}"))
    if shown is None or shown.parent == folder or len(parts) < 2:
        return ""
    other = next(name for name in parts if name != shown.parent.name)
    return (
        f"This run trained {len(parts)} networks: {', '.join(parts)}. The page shows {shown.parent.name}. "
        f"To see another one, name its folder, as in `kernelmesh dashboard {folder / other}`."
    )


def run_of(folder: Path) -> Path:
    """The folder of the run that a folder is a part of, or the folder itself."""
    whole = folder.resolve().parent
    is_part = (folder / FILE).is_file() and not (folder / "summary.json").is_file() and (whole / "summary.json").is_file()
    return whole if is_part and not (whole / FILE).is_file() else folder


def _csv(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.reader(file) if row]


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise UnreadableFile(f"{path}: must be complete JSON ({error})") from None
    if not isinstance(found, dict):
        raise UnreadableFile(f"{path}: must be a JSON object")
    return found
