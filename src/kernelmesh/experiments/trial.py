"""Trains one network to the end, with measurements along the way; can be stopped and resumed."""

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmesh import Measures, Round, errors, simulate, storage
from kernelmesh.checks import integer
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.experiments.events import Measured, NetworkStarted, Observer, Progress
from kernelmesh.experiments.network import Network
from kernelmesh.experiments.outcome import Complete, Diverged, Interrupted, Outcome
from kernelmesh.metrics import measure_agents, summarize
from kernelmesh.runtimes.engines import Engine
from kernelmesh.streams import StreamSlice

__all__ = ["Stop", "Trial", "learn"]

Stop = Callable[[], bool]
"""Asked after every step: whether to stop there and keep what has been computed."""

_CHECKPOINT = "checkpoint.safetensors"
# Rounds between two checkpoints of a run whose agents are in other processes.
_SAVE_EVERY = 25


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial:
    """What a network learned, how it came there, and how that ended."""

    record: Sequence[Measures]
    newest: Round
    outcome: Outcome
    seconds: float
    seconds_before: float = 0.0
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

    def row(self) -> dict[str, Any]:
        """The summary as a row of a table, with the outcome of this network."""
        return {**self.outcome.row(), **self.summary()}


def learn(
    network: Network,
    *,
    only_ends: bool = False,
    folder: Path | None = None,
    resume: bool = False,
    publish: Observer = lambda _: None,
    stop: Stop = lambda: False,
    engine: Engine | None = None,
) -> Trial:
    """Train until the streams end, the run diverges, or it is stopped; whatever was measured until then is returned.

    With `only_ends`, that is only the first round and the last one.
    With a folder, the run leaves a checkpoint there, and `resume` continues from it if it was made with the same settings.
    A resumed run learns and sends the same, bit for bit, as one that was never stopped. With an engine, agents are elsewhere;
    the checkpoint is the same, and is also written every now and then, so that a run survives the process that drives it.
    """
    if not network.rounds:
        raise InvalidArgument("run", "samples", "be enough for one mini-batch somewhere", Verbatim("none"))
    began = time.perf_counter()
    file = folder / _CHECKPOINT if folder is not None else None
    newest, record, spent = _read(file, network) if resume and file is not None else (None, [], 0.0)
    total = network.rounds
    outcome: Outcome = Complete()
    save_every = network.save_every or (0 if engine is None else _SAVE_EVERY)

    def save(now: Round) -> None:
        if file is not None:
            _write(file, network, now, record, spent + time.perf_counter() - began)

    def take_measures(now: Round) -> None:
        where = {"graph": network.graph, "points": network.points, "targets": network.targets, "sample": network.sample}
        each = measure_agents(now, agent=network.agent, **where)
        record.append(summarize(now, each, agent=network.agent))
        publish(Measured(network.part, now, record[-1], each))

    publish(NetworkStarted(network.part, network, newest.number if newest else 0))
    publish(Progress(done=newest.number if newest else 0, total=total, unit="rounds", part=network.part))
    try:
        for now in _rounds(network, newest, engine):
            newest = now
            total = max(total, now.number)
            if now.number in (1, network.rounds) or (not only_ends and now.number % network.measure_every == 0):
                take_measures(now)
            if save_every and now.number % save_every == 0 and now.number < total:
                save(now)
            publish(Progress(done=now.number, total=total, unit="rounds", part=network.part))
            if (now.number < total or network.is_open_ended) and stop():
                raise KeyboardInterrupt
    except (errors.Diverged, KeyboardInterrupt) as cause:
        if newest is None:  # there is nothing to show
            raise
        done = Interrupted(done=newest.number, total=total, unit="rounds")
        outcome = Diverged(cause) if isinstance(cause, errors.Diverged) else done
    except Exception:  # an observer's mistake, or a full disk: the rounds are not to blame
        if newest is not None:
            save(newest)
        raise
    assert newest is not None
    save(newest)  # also at the end: should measuring or the report be interrupted, nothing is lost
    if not record or (record[-1].round != newest.number and not isinstance(outcome, Diverged)):
        take_measures(newest)
    seconds = spent + time.perf_counter() - began
    return Trial(record=record, newest=newest, outcome=outcome, seconds=seconds, seconds_before=spent)


def _rounds(network: Network, before: Round | None, engine: Engine | None) -> Iterator[Round]:
    """The rounds after those of an earlier run, with numbers and traffic as if there had been no stop."""
    if before is None:
        yield from simulate(network.agent, network.graph, network.streams, engine=engine)
        return
    rest = [_rest(part, samples) for part, samples in zip(network.streams, before.samples, strict=True)]
    for now in simulate(network.agent, network.graph, rest, states=before.states, engine=engine):
        sent = {name: getattr(now, name) + getattr(before, name) for name in _SENT}
        yield dataclasses.replace(now, number=now.number + before.number, **sent)


def _rest(part: StreamSlice, samples: int) -> StreamSlice:
    """What is left of a stream after so many samples."""
    start, stream = part.start, part.stream
    again = dataclasses.replace(stream, rng=copy.deepcopy(stream.rng))  # the generator of the stream itself stays as it is
    for batch in StreamSlice(again, part.start, part.stop):
        if samples <= 0:
            break
        start, samples = start + 1, samples - len(batch.points)
    return StreamSlice(stream, start, part.stop)


_SENT = ("floats_sent", "bytes_sent", "edge_bytes")


def _write(path: Path, network: Network, now: Round, record: Sequence[Measures], seconds: float) -> None:
    """What a run needs to continue."""
    arrays = {name: getattr(now, name) for name in _SENT}
    for i, state in enumerate(now.states):
        packed = storage.pack(state, workspace=True)
        arrays |= {f"{i}/{key}": value for key, value in packed.items()}
    lines = [dataclasses.asdict(line) for line in record]
    about = {"rounds": now.number, "seconds": seconds, "record": lines, "settings": network.settings}
    storage.write(path, kind="run", arrays=arrays, settings=about)


def _read(path: Path, network: Network) -> tuple[Round | None, list[Measures], float]:
    """Where an earlier run stopped: its last round, its record, and the seconds it took."""
    if not path.exists():
        return None, [], 0.0
    arrays, about = storage.read(path, kind="run")
    settings, names = network.settings, network.graph.names
    with storage.understood(path, "a run"):
        others = sorted(key for key in settings if about["settings"].get(key) != settings[key])
        own: list[dict[str, Any]] = [{} for _ in names]
        for key, value in arrays.items() if not others else ():
            number, slash, rest = key.partition("/")
            if slash:
                own[int(number)][rest] = value
        known = zip(own if not others else (), names, strict=False)
        states = [storage.unpack(network.agent, packed, name=name) for packed, name in known]
        rounds = integer("run", "rounds", about["rounds"], minimum=1)
        sent = {name: arrays[name] for name in _SENT}
        last = Round(number=rounds, states=tuple(states), infos=(None,) * len(states), **sent)
        # where a run was interrupted it was measured once more than otherwise
        record = [Measures(**line) for line in about["record"]]
        regular = (1, network.rounds)
        record = [line for line in record if line.round in regular or line.round % network.measure_every == 0]
        seconds = float(about["seconds"])
    if others:
        remedy = "repeat its options, or pass its config.json with --config"
        rule = "continue a run with the settings of that run"
        raise InvalidArgument("run", "--resume", rule, Verbatim(f"others for {', '.join(others)}"), remedy=remedy)
    return last, record, seconds
