"""Trains one network to the end, with measurements along the way; can be stopped and resumed."""

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmesh import Diverged as DivergedError
from kernelmesh import InvalidArgument, Measures, Round, simulate, storage
from kernelmesh.metrics import measure_agents, summarize
from kernelmesh.runtimes.engines import Engine
from kernelmesh.streams import StreamSlice
from kernelmesh_experiments import events

__all__ = ["Stop", "Trial", "learn"]

Stop = Callable[[], bool]
"""Asked after every step: whether to stop there and keep what has been computed."""
_SENT = ("floats_sent", "bytes_sent", "edge_bytes")


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial:
    """What a network learned, how it came there, and how that ended."""

    record: Sequence[Measures]
    newest: Round
    outcome: events.Outcome
    seconds: float
    """With those before an interruption."""

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
    network: events.Network,
    *,
    folder: Path | None = None,
    resume: bool = False,
    publish: events.Observer = lambda _: None,
    stop: Stop = lambda: False,
    engine: Engine | None = None,
) -> Trial:
    """Train until the streams end, the run diverges, or it is stopped; whatever was measured until then is returned.

    With a folder, the run leaves a checkpoint there, and `resume` continues from it if it was made with the same settings.
    A resumed run learns and sends the same, bit for bit, as one that was never stopped. The
    checkpoint is written every now and then, so that a run survives its process, and is the same with every engine.
    """
    if not network.rounds:
        raise InvalidArgument("run", "samples", "be enough for one mini-batch somewhere", 0)
    run = _Run(network, folder, publish, resume=resume)
    outcome: events.Outcome = events.Complete()
    try:
        for now in run.rounds(engine):
            if now.number in (1, network.rounds) or now.number % network.measure_every == 0:
                run.measure()
            if now.number % network.save_every == 0 and now.number < run.total:
                run.save()
            run.tell()
            if (now.number < run.total or network.agent.protocol.shares) and stop():
                raise KeyboardInterrupt
    except (DivergedError, KeyboardInterrupt) as cause:
        if run.newest is None:  # there is nothing to show
            raise
        stopped = events.Interrupted(done=run.newest.number, total=run.total, unit="rounds")
        outcome = events.Diverged(cause) if isinstance(cause, DivergedError) else stopped
    except Exception:  # an observer's mistake, or a full disk: the rounds are not to blame
        run.save()
        raise
    run.save()  # also at the end: should measuring or the report be interrupted, nothing is lost
    return run.finished(outcome)


class _Run:
    """A network that learns: its newest round, what was measured, and its checkpoint."""

    def __init__(self, network: events.Network, folder: Path | None, publish: events.Observer, *, resume: bool) -> None:
        self.network, self._publish, self._began = network, publish, time.perf_counter()
        self._file = folder / "checkpoint.safetensors" if folder is not None else None
        self.newest: Round | None = None
        self._record: list[Measures] = []
        self._spent = 0.0
        if resume and self._file is not None and self._file.exists():
            self._read(self._file)
        self.total = network.rounds
        publish(events.NetworkStarted(network, self.newest.number if self.newest else 0))
        self.tell()

    @property
    def _seconds(self) -> float:
        return self._spent + time.perf_counter() - self._began

    def tell(self) -> None:
        """Publish how far the run is."""
        done = self.newest.number if self.newest else 0
        self._publish(events.Progress(done=done, total=self.total, unit="rounds", part=self.network.part))

    def rounds(self, engine: Engine | None) -> Iterator[Round]:
        """The rounds after those of an earlier run, with numbers and traffic as if there had been no stop."""
        network, before = self.network, self.newest
        streams, states = network.streams, None
        if before is not None:
            streams = [_rest(part, samples) for part, samples in zip(streams, before.samples, strict=True)]
            states = before.states
        for now in simulate(network.agent, network.graph, streams, states=states, engine=engine):
            self.newest = now
            if before is not None:
                sent = {name: getattr(now, name) + getattr(before, name) for name in _SENT}
                self.newest = dataclasses.replace(now, number=now.number + before.number, **sent)
            self.total = max(self.total, self.newest.number)
            yield self.newest

    def measure(self) -> None:
        """Measure the newest round."""
        network, now = self.network, self.newest
        assert now is not None
        where: dict[str, Any] = {"graph": network.graph, "points": network.points, "targets": network.targets}
        each = measure_agents(now, agent=network.agent, **where, sample=network.sample)
        self._record.append(summarize(now, each, agent=network.agent))
        self._publish(events.Measured(now, self._record[-1], each))

    def finished(self, outcome: events.Outcome) -> Trial:
        """The result, whose last measures are those of the end."""
        assert self.newest is not None
        if not self._record or (self._record[-1].round != self.newest.number and not isinstance(outcome, events.Diverged)):
            self.measure()
        found: dict[str, Any] = {"record": self._record, "newest": self.newest, "outcome": outcome}
        return Trial(**found, seconds=self._seconds)

    def save(self) -> None:
        """Write what a run needs to continue."""
        if self._file is None or self.newest is None:
            return
        arrays = {name: getattr(self.newest, name) for name in _SENT}
        for i, state in enumerate(self.newest.states):
            arrays |= {f"{i}/{key}": value for key, value in storage.pack(state, workspace=True).items()}
        lines = [dataclasses.asdict(line) for line in self._record]
        about = {"rounds": self.newest.number, "seconds": self._seconds, "record": lines, "settings": self.network.settings}
        storage.write(self._file, kind="run", arrays=arrays, settings=about)

    def _read(self, path: Path) -> None:
        """Continue where an earlier run stopped."""
        arrays, about = storage.read(path, kind="run")
        network = self.network
        with storage.understood(path, "a run"):
            others = [key for key, value in network.settings.items() if about["settings"].get(key) != value]
            if not others:
                own: list[dict[str, Any]] = [{} for _ in network.graph.names]
                for key, value in arrays.items():
                    number, slash, rest = key.partition("/")
                    if slash:
                        own[int(number)][rest] = value
                known = zip(own, network.graph.names, strict=True)
                states = tuple(storage.unpack(network.agent, packed, name=name) for packed, name in known)
                sent = {name: arrays[name] for name in _SENT}
                rounds = int(about["rounds"])
                if rounds < 1:
                    raise ValueError(rounds)
                self.newest = Round(number=rounds, states=states, infos=(None,) * len(states), **sent)
                # where a run was interrupted it was measured once more than otherwise
                lines = [Measures(**line) for line in about["record"]]
                due = [line for line in lines if line.round in (1, network.rounds) or line.round % network.measure_every == 0]
                self._record, self._spent = due, float(about["seconds"])
        if others:
            remedy = "repeat its options, or pass its config.json with --config"
            rule = "continue a run with the settings of that run"
            raise InvalidArgument("run", "--resume", rule, {key: network.settings[key] for key in others}, remedy=remedy)


def _rest(part: StreamSlice, samples: int) -> StreamSlice:
    """What is left of a stream after so many samples."""
    start, stream = part.start, part.stream
    again = dataclasses.replace(stream, rng=copy.deepcopy(stream.rng))  # the generator of the stream itself stays as it is
    for batch in StreamSlice(again, part.start, part.stop):
        if samples <= 0:
            break
        start, samples = start + 1, samples - len(batch.points)
    return StreamSlice(stream, start, part.stop)
