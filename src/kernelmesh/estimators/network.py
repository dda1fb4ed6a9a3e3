"""A network of learners as an estimator."""

import warnings
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmesh import ArrayStream, ConsensusProtocol, Faults, Function, Graph, Kernel, Loss, Round, State, simulate
from kernelmesh.checks import Floats, Ints, integer
from kernelmesh.errors import InvalidArgument, Verbatim
from kernelmesh.estimators.base import Estimator, grouped
from kernelmesh.estimators.parameters import TOLERANCE
from kernelmesh.learners import Averaged, Gradient, Landmarks, Learner, SecondOrder, check_learner
from kernelmesh.messages import News, SentFunction
from kernelmesh.protocols import Diffusion, Hilbert, Local, Penalty, Relay
from kernelmesh.registry import describe, restore
from kernelmesh.streams import deal

__all__ = ["Network"]


class Network(Estimator):
    """A network of agents, each with its own function; the estimator predicts with their average."""

    _watched = ("kernel", "loss", "learner", "regularization", "max_order", "half_life", "batch_size", "graph", "protocol")
    _cooperates = True
    _network: Graph
    floats_sent_: Ints
    bytes_sent_: Ints

    def __init__(
        self,
        kernel: Kernel | None = None,
        loss: Loss | None = None,
        *,
        graph: Any = None,
        protocol: ConsensusProtocol | None = None,
        faults: Faults | None = None,
        learner: Learner | None = None,
        regularization: float | None = None,
        max_order: float | None = None,
        half_life: float | None = None,
        batch_size: int = 32,
        passes: int | None = None,
        tol: float | None = TOLERANCE,
        verbose: bool | int = False,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.loss = loss
        self.graph = graph
        self.protocol = protocol
        self.faults = faults
        self.learner = learner
        self.regularization = regularization
        self.max_order = max_order
        self.half_life = half_life
        self.batch_size = batch_size
        self.passes = passes
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state

    # -- what was learned ----------------------------------------------------------------------------------------------

    @property
    def agents_(self) -> dict[Hashable, Function]:
        """The function that each agent has learned, by its name in the graph."""
        return dict(zip(self._names, self._functions, strict=True))

    @property
    def dictionary_(self) -> Floats:
        """The points of the average function: those that all agents share, or the dictionaries of all agents, stacked."""
        return np.concatenate([f.points for f in grouped(self._functions)])

    @property
    def weights_(self) -> Floats:
        """The weights of the average function."""
        return np.concatenate([f.weights for f in grouped(self._functions)])

    @property
    def model_order_(self) -> Ints:
        """The number of points in each agent's dictionary."""
        return np.array([f.order for f in self._functions])

    # -- settings ------------------------------------------------------------------------------------------------------

    @property
    def _default_kind(self) -> type[Learner]:
        if self.protocol is None or isinstance(self.protocol, Relay):
            return Landmarks
        if isinstance(self.protocol, Local):
            return SecondOrder
        # large steps need a protocol without a penalty, whose stability limit they lower
        return Gradient if isinstance(self.protocol, Penalty | Hilbert) else Averaged

    @property
    def _names(self) -> tuple[Hashable, ...]:
        return self._network.names

    def _cooperation(self) -> ConsensusProtocol:
        self._network = Graph.ring(5) if self.graph is None else Graph.of(self.graph)
        self.floats_sent_ = self.bytes_sent_ = np.zeros(len(self._network), dtype=np.int64)
        if self.protocol is not None:
            return self.protocol
        learner = self.learner
        hears = (News,) if learner is None else check_learner(type(self).__name__, learner).hears
        if News in hears:
            # features of the default kernel count alike, whatever their units
            scales = self.kernel is None
            return Relay(scales=scales, tunes=scales and learner is None and self.regularization is None)
        if SentFunction in hears:
            return Diffusion()
        rule, remedy = "be one that learns from neighbors", "add protocol=Local() for agents that learn alone"
        raise InvalidArgument(type(self).__name__, "learner", rule, Verbatim(repr(learner)), remedy=remedy)

    # -- learning ------------------------------------------------------------------------------------------------------

    def _learn_in_passes(self, X: Floats, targets: NDArray[Any], agents: Any, rng: np.random.Generator) -> None:
        rows, passes = self._dealt(len(X), agents, rng), self._most_passes(len(X))
        streams = self._streams(X, targets, rows, passes=passes, rng=rng)
        longest = max(range(len(streams)), key=lambda i: len(streams[i]))
        progress = self._progress(X, targets, agent=longest, rounds=len(streams[longest]) // passes, passes=passes)
        for now in self._rounds(streams, self.states_):
            self.states_ = tuple(now.states)
            ends = now.infos[longest] is not None and progress.see(self.states_)
            self.n_iter_ = progress.complete
            if ends:
                break
        for now in self._rounds([()] * len(streams), self.states_):  # until all know what each has learned
            self.states_ = tuple(now.states)
        if self.agent_.protocol.shares:
            progress.settle(self.states_)

    def _learn_once(self, X: Floats, targets: NDArray[Any], agents: Any) -> None:
        streams = self._streams(X, targets, self._dealt(len(X), agents, None))
        for now in self._rounds(streams, self.states_):
            self.states_ = tuple(now.states)

    def _streams(
        self, X: Floats, targets: NDArray[Any], rows: Sequence[Ints], *, passes: int = 1, rng: Any = None
    ) -> list[ArrayStream]:
        """The stream of each agent."""
        return [ArrayStream(X[mine], targets[mine], batch_size=self.batch_size, passes=passes, rng=rng) for mine in rows]

    def _rounds(self, streams: Sequence[Any], states: Sequence[State]) -> Iterable[Round]:
        """Run `simulate` on the streams and count what agents send."""
        faults: object = self.faults
        if not isinstance(faults, Faults | None):
            remedy = "for example Faults(drop=0.1, rng=np.random.default_rng(0))"
            raise InvalidArgument(type(self).__name__, "faults", "be Faults or None", faults, remedy=remedy)
        floats, sizes = self.floats_sent_, self.bytes_sent_
        for now in simulate(self.agent_, self._network, streams, states=states, faults=faults):
            self.floats_sent_, self.bytes_sent_ = floats + now.floats_sent, sizes + now.bytes_sent
            yield now

    def _dealt(self, rows: int, agents: Any, rng: np.random.Generator | None) -> list[Ints]:
        """The rows that each agent sees: as given, or split evenly."""
        names = self._names
        if agents is None:
            if rng is not None:
                return deal(rows, agents=len(names), rng=rng)
            # in turn, continuing where the previous call stopped
            seen = sum(state.samples for state in self.states_)
            return [np.arange((start - seen) % len(names), rows, len(names)) for start in range(len(names))]
        named = list(agents) if isinstance(agents, Iterable) else []
        if len(named) != rows:
            rule, found = f"name an agent for each of {rows} rows", Verbatim(f"{len(named)} names")
            raise InvalidArgument(type(self).__name__, "agents", rule, found)
        numbers = np.array([self._number(_plain(name), "agents") for name in named], dtype=np.int64)
        dealt = [np.flatnonzero(numbers == i) for i in range(len(names))]
        if rng is not None and not self.agent_.protocol.shares:
            self._warn_of_idle([name for name, own in zip(names, dealt, strict=True) if not len(own)])
        return dealt

    def _warn_of_idle(self, idle: Sequence[Hashable]) -> None:
        """Warn of agents that `fit` gives no rows: they learn nothing and separate their neighbors."""
        if idle:
            listed = ", ".join(map(repr, idle[:5])) + (f" and {len(idle) - 5} more" if len(idle) > 5 else "")
            warnings.warn(
                f"{type(self).__name__}: no rows for {'agent' if len(idle) == 1 else 'agents'} {listed}: an agent without "
                "rows learns nothing and relays nothing between its neighbors; remove it from the graph, or give it rows",
                UserWarning,
                stacklevel=5,  # the caller of fit
            )

    # -- files ---------------------------------------------------------------------------------------------------------

    def _described(self, parameters: dict[str, Any]) -> dict[str, Any]:
        # faults are not part of the model, and may contain a generator or a function
        parameters = {name: value for name, value in parameters.items() if name != "faults"}
        if parameters["graph"] is not None:  # which may have a form that JSON cannot represent
            parameters["graph"] = self._network
        return super()._described(parameters)

    def _describe_agents(self, arrays: dict[str, NDArray[Any]]) -> Any:
        return {"graph": describe(self._network), "sent": [self.floats_sent_.tolist(), self.bytes_sent_.tolist()]}

    def _restore_agents(self, description: Any, arrays: dict[str, NDArray[Any]]) -> None:
        self._network = Graph.of(restore(description["graph"]))
        sent = np.array([[integer("file", "sent", each, minimum=0) for each in row] for row in description["sent"]])
        if sent.shape != (2, len(self._network)):
            raise InvalidArgument("file", "sent", f"have {len(self._network)} numbers", Verbatim(f"shape {sent.shape}"))
        self.floats_sent_, self.bytes_sent_ = sent


def _plain(name: Any) -> Hashable:
    return name.item() if isinstance(name, np.generic) else name if isinstance(name, Hashable) else tuple(name)
