"""Monitors a mesh: the status of every agent, as values for a table, a page or a test."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from kernelmesh.deploy.client import AgentClient
from kernelmesh.deploy.processes import AgentProcess, ProcessState
from kernelmesh.errors import UnreachableAgent
from kernelmesh.runtimes.expiry import WARN_DAYS
from kernelmesh.runtimes.status import Status

__all__ = ["AgentView", "MeshWatcher"]


@dataclass(frozen=True, kw_only=True)
class AgentView:
    """One agent, as seen from outside.

    Attributes
    ----------
    name : str
        Its name.
    status : Status or None
        Its latest status; None if it has not answered yet.
    stale : bool
        Whether it did not answer this time, so that `status` is an earlier one.
    remarks : tuple of str
        Further remarks.
    """

    name: str
    status: Status | None = None
    stale: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def answers(self) -> bool:
        """Whether it answered this time."""
        return self.status is not None and not self.stale

    @property
    def stream_ended(self) -> bool:
        """Whether its stream had ended when it last answered."""
        return self.status is not None and self.status.ended

    @property
    def alive_neighbors(self) -> int | None:
        """The number of neighbors that are alive; None if the agent does not answer."""
        if self.status is None or self.stale:
            return None
        return sum(neighbor.alive for neighbor in self.status.neighbors.values())


class MeshWatcher:
    """Polls all agents of a mesh concurrently and remembers the last answer of each; a context manager.

    Parameters
    ----------
    agents : sequence of AgentClient or AgentProcess
        A process also reports its own state.
    """

    def __init__(self, agents: Sequence[AgentClient | AgentProcess]) -> None:
        self._agents = agents
        self._last: list[Status | None] = [None] * len(agents)
        self._pool = ThreadPoolExecutor(len(agents))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        for agent in self._agents:
            _client(agent).close()

    def poll(self) -> list[AgentView]:
        """The current view of every agent."""
        views = []
        for i, (agent, (fresh, problem)) in enumerate(zip(self._agents, self._pool.map(_ask, self._agents), strict=True)):
            status = self._last[i] = fresh or self._last[i]
            stale = fresh is None and status is not None
            remarks = [problem]
            if isinstance(agent, AgentProcess):
                remarks = [agent.remark, "starting" if problem and not stale else problem]
            remarks = [*filter(None, remarks), *_status_remarks(status, stale=stale)]
            views.append(AgentView(name=_client(agent).address.name, status=status, stale=stale, remarks=tuple(remarks)))
        return views


def _client(agent: AgentClient | AgentProcess) -> AgentClient:
    return agent.client if isinstance(agent, AgentProcess) else agent


def _ask(agent: AgentClient | AgentProcess) -> tuple[Status | None, str]:
    """An agent's status, or the reason why there is none if its process does not give one."""
    if isinstance(agent, AgentProcess) and agent.state is not ProcessState.RUNNING:
        return None, ""
    try:
        return _client(agent).status(), ""
    except UnreachableAgent:
        return None, "does not answer"
    except (ImportError, OSError, ValueError) as error:
        return None, str(error)


def _status_remarks(status: Status | None, *, stale: bool) -> Iterator[str]:
    if status is None:
        return
    if status.ended:
        yield "stream has ended"
    if status.waiting_for and not stale:
        yield f"waits for {', '.join(status.waiting_for)}"
    if status.out_of_step:
        yield f"out of step with {', '.join(status.out_of_step)}: see the log"
    for verb, which in (("ignores", "ignored"), ("excludes", "excluded"), ("quarantines", "quarantined")):
        if names := [name for name, neighbor in status.neighbors.items() if getattr(neighbor, which)]:
            yield f"{verb} {', '.join(names)}"
    for verb, which in (("refused", "refused"), ("left out", "left_out")):
        counts = {name: getattr(neighbor, which) for name, neighbor in status.neighbors.items() if getattr(neighbor, which)}
        if counts:
            yield f"{verb}: " + ", ".join(f"{count} from {name}" for name, count in counts.items())
    if status.expires is not None and status.expires <= WARN_DAYS:
        yield "certificate has expired" if status.expires < 0 else f"certificate expires in {status.expires:.1f} days"
    if status.recoveries:
        yield f"went back to an earlier function {status.recoveries}×"
    if status.bad_rows:
        yield f"{status.bad_rows} invalid rows"
    if status.trouble:
        yield f"no checkpoint: {status.trouble}"
