"""Screenshots of the documentation site, light and dark, narrow and wide: `python tools/site_pictures.py FOLDER [PAGE …]`.

`make docs` builds the pages first. Fails if a page asks for anything that is not its own, or complains on the console.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import io
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from browser import browser, complaints, requests, size, wait  # noqa: E402

SITE = ROOT / "build" / "site"
PAGES = ["index", "tutorials/hosts", "reference/kernels"]
SIZES = {390: 844, 1440: 900}


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def served(folder: Path = SITE) -> Iterator[str]:
    """The site at an address of this machine."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def main(folder: Path, pages: list[str]) -> None:
    """Take every picture."""
    folder.mkdir(parents=True, exist_ok=True)
    with served() as address, browser() as driver:
        for page in pages:
            for width, height in SIZES.items():
                for dark in (False, True):
                    size(driver, width, height, dark=dark)
                    driver.get(f"{address}/{page}.html")
                    wait(driver, "document.readyState === 'complete'")
                    picture = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
                    name = f"{page.replace('/', '-')}-{'dark' if dark else 'light'}-{width}.png"
                    picture.quantize(256, dither=Image.Dither.NONE).save(folder / name, optimize=True)
        strange = [asked for asked in requests(driver) if not asked.startswith((address, "data:", "chrome"))]
        assert not strange, strange
        found = [text for text in complaints(driver) if "favicon" not in text]
        assert not found, found


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or PAGES)
