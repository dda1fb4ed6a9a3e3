"""The dashboard with a large run, in a real browser: first picture, scrubbing, and memory while a run streams."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from cases import Line, at_most
from kernelmesh import Gaussian, Graph, Logistic
from kernelmesh.dashboard.recording import AGENT, FILE, Frame, Recording, Snapshot, Subject
from kernelmesh.dashboard.serving import Dashboard
from kernelmesh.dashboard.sources import FolderSource, News, Shown, Source

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import browser

_AGENTS, _ROUNDS, _POINTS, _CLASSES, _BATCH = 100, 10_000, 20, 5, 32
_SECONDS = float(os.environ.get("KERNELMESH_STREAM_SECONDS", "600"))


def _subject() -> Subject:
    rng = np.random.default_rng(0)
    graph = Graph.random(_AGENTS, probability=0.03, rng=rng)
    points = rng.standard_normal((400, 2))
    return Subject(
        names=tuple(map(str, graph.names)),
        edges=np.array(graph.edges),
        dimension=2,
        outputs=_CLASSES,
        kernel=Gaussian(bandwidth=0.6),
        loss=Logistic(),
        classes=tuple(map(str, range(_CLASSES))),
        held_points=points,
        held_targets=rng.integers(_CLASSES, size=400).astype(float),
        own_points=np.repeat(points[:20], _AGENTS, axis=0),
        own_targets=np.zeros(20 * _AGENTS),
        own_agents=np.tile(np.arange(_AGENTS), 20),
        seen=np.ones((_AGENTS, _CLASSES), dtype=np.int64),
    )


def _frame(subject: Subject, number: int, rng: np.random.Generator) -> Frame:
    """Numbers that change as those of a run do."""
    near = 1.0 - 0.8 * np.exp(-number / 1500)
    samples = number * _BATCH
    agents = np.zeros((len(subject.names), len(AGENT)), dtype=np.float32)
    agents[:, 0] = samples
    agents[:, 1] = 1.6 - near + 0.05 * rng.random(len(agents))
    agents[:, 2] = near - 0.05 * rng.random(len(agents))
    agents[:, 3] = 20 * near
    agents[:, 4] = 160.0 * samples
    edges = np.column_stack((np.exp(-4 * near) * rng.random(len(subject.edges)), np.full(len(subject.edges), 30.0 * samples)))
    totals = {
        "round": number,
        "samples": samples,
        "objective": float(agents[:, 1].sum()),
        "disagreement": float(2 * edges[:, 0].sum()),
        "order_mean": float(agents[:, 3].mean()),
        "order_max": float(agents[:, 3].max()),
        "score_mean": float(agents[:, 2].mean()),
        "score_worst": float(agents[:, 2].min()),
        "bytes_per_sample": 160.0,
        "penalty": 0.01,
    }
    return Frame(totals, agents, edges.astype(np.float32))


def _snapshot(number: int, rng: np.random.Generator) -> Snapshot:
    shape = (_AGENTS * _POINTS,)
    offsets = np.arange(_AGENTS + 1) * _POINTS
    centers, weights = rng.standard_normal((*shape, 2)), rng.standard_normal((*shape, _CLASSES))
    return Snapshot(number, number * _BATCH, offsets, centers.astype(np.float32), weights.astype(np.float32))


def _record(folder: Path) -> tuple[Recording, float]:
    """A run of 10,000 rounds, all measured, in a folder; and what recording took per round, in milliseconds."""
    subject, rng = _subject(), np.random.default_rng(1)
    recording, spent = Recording(subject), 0.0
    for number in range(1, _ROUNDS + 1):
        frame, snapshot = _frame(subject, number, rng), _snapshot(number, rng) if number % 10 == 1 else None
        began = time.perf_counter()
        recording.add(frame, snapshot)
        spent += time.perf_counter() - began
    recording.write(folder / FILE)
    (folder / "summary.json").write_text('{"outcome": "complete", "remark": ""}')
    return recording, 1e3 * spent / _ROUNDS


_SCRUB = """
const done = arguments[arguments.length - 1], app = KM.app, began = performance.now(), drawn = app.drawn;
let n = 0;
const next = () => {
  app.clock.set(app.end * (0.5 - 0.5 * Math.cos(n++ / 12)));
  if (performance.now() - began < 4000) requestAnimationFrame(next);
  else done([(app.drawn - drawn) / (performance.now() - began) * 1000, new Set(app.runs[0].frames).size]);
};
requestAnimationFrame(next);
"""


def _thread_seconds(driver: Any) -> float:
    """CPU time of the page's main thread so far, whatever else runs on the machine."""
    found = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return float(next(each["value"] for each in found if each["name"] == "TaskDuration"))


def _heap(driver: Any) -> float:
    """Megabytes that the page's JavaScript holds after garbage was collected."""
    driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    return float(driver.execute_cdp_cmd("Runtime.getHeapUsage", {})["usedSize"]) / 1e6


class _Endless(Source):
    """A run that never ends."""

    live = True

    def __init__(self) -> None:
        super().__init__("endless")
        self.shown = Shown(Recording(_subject()))

    def news(self) -> News:
        return News(0, self.shown.recording.version, "running")


def _first_pictures(driver: Any, page: Dashboard, times: int) -> list[tuple[float, float, float]]:
    """Seconds from the beginning of loading to the network and to the last curve, and CPU seconds of the page."""
    out = []
    for _ in range(times):
        driver.get("about:blank")
        before = _thread_seconds(driver)
        driver.get(page.url)
        browser.painted(driver)
        cpu = _thread_seconds(driver)
        network, all_drawn = driver.execute_script("return [KM.app.firstShown, KM.app.painted]")
        out.append((network / 1e3, all_drawn / 1e3, cpu - before if cpu > before else cpu))
    return out


def _scrub(driver: Any) -> tuple[float, float, int]:
    """Frames per second while the slider is moved without a pause; CPU milliseconds of each; frames that the page holds."""
    before, drawn = _thread_seconds(driver), driver.execute_script("return KM.app.drawn")
    rate, held = driver.execute_async_script(_SCRUB)
    frames = driver.execute_script("return KM.app.drawn") - drawn
    return rate, 1e3 * (_thread_seconds(driver) - before) / max(frames, 1), held


def _stream(driver: Any, seconds: float) -> tuple[float, float, int]:
    """Megabytes of the page a fifth into a streaming run and at its end, and how many frames were streamed."""
    source, stop, rng = _Endless(), threading.Event(), np.random.default_rng(2)

    def feed() -> None:
        number = 0
        while not stop.wait(0.02):
            number += 1
            snapshot = _snapshot(number, rng) if number % 25 == 1 else None
            source.shown.recording.add(_frame(source.shown.subject, number, rng), snapshot)

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    try:
        with Dashboard([source], port=0) as page:
            driver.get(page.url)
            browser.wait(driver, "KM.app.runs[0] && KM.app.runs[0].frames.length > 5")
            time.sleep(seconds / 5)
            early = _heap(driver)
            samples = []
            while len(samples) < 8:
                time.sleep(seconds / 10)
                samples.append(_heap(driver))
            return early, float(np.median(samples[-3:])), source.shown.recording.frames[-1].round
    finally:
        stop.set()
        thread.join()


def dashboard() -> list[Line]:
    """100 agents, 10,000 measured rounds, in headless Chromium; a streaming run of 100 agents, 50 rounds a second."""
    if reason := browser.missing():
        return [Line("skipped", reason)]
    with tempfile.TemporaryDirectory() as folder, browser.browser() as driver:
        recording, per_round = _record(Path(folder))
        driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        began = time.perf_counter()
        source = FolderSource(Path(folder))
        reading = time.perf_counter() - began
        size = (Path(folder) / FILE).stat().st_size / 1e6
        with Dashboard([source], port=0) as page:
            firsts = _first_pictures(driver, page, 9)
            rates = [_scrub(driver) for _ in range(5)]
        early, late, streamed = _stream(driver, _SECONDS)
    (network, first, loading), (rate, drawing, shown) = np.median(firsts, axis=0), np.median(rates, axis=0)
    return [
        at_most("first picture: network and numbers (median of nine)", float(network), 2.0, " s"),
        Line("with all curves, too: median, fastest", f"{first:.2f} s, {min(each for _, each, _ in firsts):.2f} s"),
        Line("CPU time of the page until all curves are there", f"{loading:.2f} s"),
        Line("scrubbing (median of five)", f"{rate:.0f} frames/s", "> 20 frames/s", bool(rate > 20)),
        Line("CPU time of the page per frame", f"{drawing:.1f} ms"),
        Line("frames recorded, and held by the page", f"{len(recording.frames)}, {shown:.0f}"),
        Line("recording on disk", f"{size:.1f} MB"),
        Line("reading it", f"{reading:.2f} s"),
        Line("recording a round", f"{per_round:.3f} ms"),
        Line("rounds streamed", f"{streamed} in {_SECONDS:.0f} s"),
        Line("load of the two cores at the end (1 is one busy core)", f"{os.getloadavg()[0]:.0f}"),
        Line("page memory after a fifth of the stream", f"{early:.1f} MB"),
        at_most("page memory at the end over that", late / early, 1.15),
    ]
