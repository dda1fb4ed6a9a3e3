"""Running one network to its end, with measures on the way, stops that keep what there is, and going on from them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernelmesh import storage
from kernelmesh.agent import Agent, State
from kernelmesh.checks import Floats
from kernelmesh.errors import Diverged
from kernelmesh.experiments.base import Progress, Watch
from kernelmesh.metrics import Measures, measure
from kernelmesh.numerics.graphs import Graph
from kernelmesh.runtimes import Round, simulate
from kernelmesh.streams import StreamSlice

__all__ = ["Trial", "learn"]

_CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True, eq=False)
class Trial:
    """What a network learned, how it came there, and why it stopped if it was not the end."""

    record: Sequence[Measures]
    newest: Round
    remark: str
    seconds: float
    before: float = 0.0
    """How many of the seconds were spent before an interruption."""

    @property
    def last(self) -> Measures:
        """The newest measures."""
        return self.record[-1]

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The record as a table."""
        return [dataclasses.asdict(line) for line in self.record]

    def summary(self) -> dict[str, Any]:
        """What every experiment with a network reports."""
        last = self.last
        return {
            "complete": not self.remark,
            "remark": self.remark,
            "samples_per_agent": last.samples,
            "accuracy_mean": last.score_mean,
            "accuracy_worst": last.score_worst,
            "model_order_mean": last.order_mean,
            "model_order_max": last.order_max,
            "disagreement": last.disagreement,
            "objective": last.objective,
            "floats_per_sample": last.floats_per_sample,
            "bytes_per_sample": last.bytes_per_sample,
        }


def learn(
    agent: Agent,
    graph: Graph,
    streams: Sequence[StreamSlice],
    *,
    points: Floats,
    targets: Any,
    watch: Watch,
    measure_every: int,
    settings: Any,
    folder: Path | None = None,
    keep_every: int = 0,
    resume: bool = False,
) -> Trial:
    """Run until the streams end, the run diverges, or Ctrl-C; whatever was measured until then is returned.

    With a folder, the run leaves a checkpoint there (also after every `keep_every` rounds, against power cuts), and `resume`
    goes on from it if it was made with the same `settings`. A run that has gone on learns the same functions, bit for bit, as
    one that was never stopped; it sends a little more, because neighbors begin again with whole functions.
    """
    began = time.perf_counter()
    total = max(len(stream) for stream in streams)
    kept = RunSnapshot.read(folder / _CHECKPOINT, agent, graph, settings) if resume and folder is not None else None
    done, record, before = (kept.rounds, list(kept.record), kept) if kept else (0, [], None)
    newest: Round | None = kept.as_round() if kept else None
    remark = ""
    watch(Progress(done, total, told=_told(record)))
    try:
        for now in _numbered(agent, graph, streams, done, before):
            newest = now
            if now.number % measure_every == 0 or now.number in (1, total):
                record.append(measure(now, agent=agent, graph=graph, points=points, targets=targets))
            if folder is not None and keep_every and now.number % keep_every == 0 and now.number < total:
                RunSnapshot.of(now, record, began, kept).write(folder / _CHECKPOINT, graph, settings)
            watch(Progress(now.number, total, told=_told(record)))
    except Diverged as error:
        remark = f"Diverged: {error}"
    except KeyboardInterrupt:
        remark = "Interrupted: the results are those up to the last round before it."
    if newest is None:
        if remark.startswith("Interrupted"):
            raise KeyboardInterrupt
        if remark:
            raise RuntimeError(f"{remark} (in the very first round: there is nothing to show)")
        raise ValueError("run: samples must be enough for one mini-batch somewhere, got none")
    if not record or (record[-1].round != newest.number and remark.startswith("Interrupted")):
        record.append(measure(newest, agent=agent, graph=graph, points=points, targets=targets))
    if folder is not None:  # also at the end: should the report be interrupted, nothing is lost
        RunSnapshot.of(newest, record, began, kept).write(folder / _CHECKPOINT, graph, settings)
    before_it = kept.seconds if kept else 0.0
    return Trial(record, newest, remark, time.perf_counter() - began + before_it, before_it)


def _told(record: Sequence[Measures]) -> str:
    if not record:
        return ""
    last = record[-1]
    return f"{last.samples} samples, objective {last.objective:.3g}, order {last.order_mean:.1f}"


def _numbered(
    agent: Agent, graph: Graph, streams: Sequence[StreamSlice], done: int, before: RunSnapshot | None
) -> Iterator[Round]:
    """The rounds from `done` on, with numbers and traffic as if there had been no stop."""
    rest = [StreamSlice(part.stream, part.start + done, part.stop) for part in streams]
    for now in simulate(agent, graph, rest, states=before.states if before else None):
        if before is None:
            yield now
        else:
            yield dataclasses.replace(
                now,
                number=now.number + done,
                floats_sent=now.floats_sent + before.floats_sent,
                bytes_sent=now.bytes_sent + before.bytes_sent,
            )


@dataclass(frozen=True, eq=False)
class RunSnapshot:
    """What a run needs to go on."""

    rounds: int
    states: Sequence[State]
    record: Sequence[Measures]
    floats_sent: Any
    bytes_sent: Any
    seconds: float

    @classmethod
    def of(cls, now: Round, record: Sequence[Measures], began: float, before: RunSnapshot | None) -> RunSnapshot:
        spent = time.perf_counter() - began + (before.seconds if before else 0.0)
        return cls(now.number, now.states, list(record), now.floats_sent, now.bytes_sent, spent)

    def as_round(self) -> Round:
        infos = tuple(None for _ in self.states)
        return Round(self.rounds, tuple(self.states), infos, self.floats_sent, self.bytes_sent)

    def write(self, path: Path, graph: Graph, settings: Any) -> None:
        arrays = {"floats_sent": np.asarray(self.floats_sent), "bytes_sent": np.asarray(self.bytes_sent)}
        for i, state in enumerate(self.states):
            arrays |= {f"{i}/{key}": value for key, value in storage.pack(state, graph.names, workspace=True).items()}
        record = [dataclasses.asdict(line) for line in self.record]
        about = {"rounds": self.rounds, "seconds": self.seconds, "record": record, "settings": settings}
        storage.write(path, kind="run", arrays=arrays, settings=about)

    @classmethod
    def read(cls, path: Path, agent: Agent, graph: Graph, settings: Any) -> RunSnapshot | None:
        if not path.exists():
            return None
        arrays, about = storage.read(path, kind="run")
        if about["settings"] != settings:
            different = sorted(key for key in settings if about["settings"].get(key) != settings[key])
            raise ValueError(f"run: --resume needs the settings of the interrupted run, but {different} differ")
        states = []
        for i, name in enumerate(graph.names):
            own = {key.split("/", 1)[1]: value for key, value in arrays.items() if key.startswith(f"{i}/")}
            states.append(storage.unpack(agent, own, name=name, names=graph.names))
        record = [Measures(**line) for line in about["record"]]
        traffic = arrays["floats_sent"], arrays["bytes_sent"]
        return cls(about["rounds"], states, record, *traffic, about["seconds"])
