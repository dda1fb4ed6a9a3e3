"""Copies tables of measurements from benchmarks/results into the pages under docs, where these have the lines

    <!-- results: NAME -->
    <!-- end of results -->

What stands between them is benchmarks/results/NAME.md, verbatim. `--check` only says which pages differ, and exits with 1.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_TABLE = re.compile(r"^<!-- results: (\S+) -->\n.*?^<!-- end of results -->$", re.DOTALL | re.MULTILINE)


def filled(page: str) -> str:
    """A page with the newest tables."""

    def table(found: re.Match[str]) -> str:
        text = (ROOT / "benchmarks" / "results" / f"{found[1]}.md").read_text(encoding="utf-8")
        return f"<!-- results: {found[1]} -->\n\n{text}\n<!-- end of results -->"

    return _TABLE.sub(table, page)


def main() -> int:
    """Rewrite or check all pages; returns how many differ from what they should be."""
    outdated = 0
    for path in sorted((ROOT / "docs").rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        if (new := filled(page)) != page:
            outdated += 1
            print(f"{path.relative_to(ROOT)} {'is out of date' if '--check' in sys.argv else 'rewritten'}")
            if "--check" not in sys.argv:
                path.write_text(new, encoding="utf-8")
    return outdated if "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main() > 0)
