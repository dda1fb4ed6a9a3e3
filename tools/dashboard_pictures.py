"""Screenshots and the animation of docs/dashboard.md, from the real page: `python tools/dashboard_pictures.py DIR DIR2`.

DIR is a run with one class per agent and the default protocol, DIR2 the same with `penalty`:

    kernelmesh run heterogeneous --set measure_every=2 --out relay
    kernelmesh run heterogeneous --protocol penalty --set measure_every=2 --out penalty
"""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

from PIL import Image

from kernelmesh.dashboard.animation import animation
from kernelmesh.dashboard.recording import FILE, Recording
from kernelmesh.dashboard.serving import Dashboard
from kernelmesh.dashboard.sources import FolderSource

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import browser

OUT = Path(__file__).parent.parent / "docs" / "dashboard"


def save(data: bytes, name: str, *, box: tuple[int, int, int, int] | None = None) -> None:
    """Write a picture, or a part of one."""
    with Image.open(io.BytesIO(data)) as image:
        image.crop(box).convert("RGB").save(OUT / name, optimize=True)


def box_of(driver: object, selector: str) -> tuple[int, int, int, int]:
    """Where an element is, with a margin."""
    script = (
        f"const b = document.querySelector({selector!r}).getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]"
    )
    left, top, right, bottom = driver.execute_script(script)  # type: ignore[attr-defined]
    return int(left) - 4, int(top) - 4, int(right) + 4, int(bottom) + 4


def open_page(driver: object, page: Dashboard, width: int, height: int, *, share: float, dark: bool = False) -> None:
    """Show agent 2 at a share of the run, with everything drawn."""
    browser.size(driver, width, height, dark=dark)
    driver.get(page.url)  # type: ignore[attr-defined]
    browser.painted(driver)
    driver.execute_script(f"KM.app.choose(2); KM.app.clock.set(KM.app.end * {share})")  # type: ignore[attr-defined]
    time.sleep(2.0)


def main() -> None:
    """Take all pictures."""
    OUT.mkdir(exist_ok=True)
    first, second = map(Path, sys.argv[1:3])
    with browser.browser() as driver:
        with Dashboard([FolderSource(first)], port=0) as page:
            open_page(driver, page, 1400, 1640, share=1.0)
            save(driver.get_screenshot_as_png(), "page.png")
            save(driver.get_screenshot_as_png(), "curves.png", box=box_of(driver, "#curves-panel"))
            open_page(driver, page, 1400, 1640, share=0.4)
            save(driver.get_screenshot_as_png(), "network.png", box=box_of(driver, "#network-panel"))
            save(driver.get_screenshot_as_png(), "function.png", box=box_of(driver, "#function-panel"))
            open_page(driver, page, 390, 1560, share=0.6, dark=True)
            save(driver.get_screenshot_as_png(), "narrow.png")
        with Dashboard([FolderSource(first), FolderSource(second)], port=0) as page:
            open_page(driver, page, 1400, 2100, share=0.6)
            save(driver.get_screenshot_as_png(), "compare.png")
    data = animation(Recording.read(first / FILE))
    if data is not None:
        (OUT / "agree.gif").write_bytes(data)
    for file in sorted(OUT.iterdir()):
        print(f"{file.name}: {file.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
