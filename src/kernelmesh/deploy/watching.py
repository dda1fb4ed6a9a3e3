"""Monitors a mesh: the status of every agent, as values for a table, a page or a test."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from kernelmesh.deploy.client import AgentClient
from kernelmesh.deploy.processes import AgentProcess
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
    def state(self) -> str:
        """What it is doing, in words."""
        return "stream has ended" if self.stream_ended else "running" if self.answers else "starting"


class MeshWatcher:
    """Polls all agents of a mesh concurrently and remembers the last answer of each; a context manager.

    Parameters
    ----------
    agents : sequence of AgentClient or AgentProcess
        A process also reports its own state.
    """

    def __init__(self, agents: Sequence[AgentClient | AgentProcess]) -> None:
        self._processes = [agent if isinstance(agent, AgentProcess) else None for agent in agents]
        self._clients = [agent.client if isinstance(agent, AgentProcess) else agent for agent in agents]
        self._last: list[Status | None] = [None] * len(agents)
        self._pool = ThreadPoolExecutor(len(agents))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        for client in self._clients:
            client.close()

    def poll(self) -> list[AgentView]:
        """The current view of every agent."""
        views = []
        for i, (fresh, problem) in enumerate(self._pool.map(_ask, self._clients, self._processes)):
            status = self._last[i] = fresh or self._last[i]
            stale, process = fresh is None and status is not None, self._processes[i]
            remarks = [problem]
            if process is not None:
                remarks = [process.remark, "starting" if problem and not stale else problem]
            remarks = [*filter(None, remarks), *(_status_remarks(status, stale=stale) if status is not None else ())]
            name = self._clients[i].address.name
            views.append(AgentView(name=name, status=status, stale=stale, remarks=tuple(remarks)))
        return views


def _ask(client: AgentClient, process: AgentProcess | None) -> tuple[Status | None, str]:
    """An agent's status, or the reason why there is none if its process does not give one."""
    if process is not None and process.code is not None:
        return None, ""
    try:
        return client.status(), ""
    except UnreachableAgent:
        return None, "does not answer"
    except (ImportError, OSError, ValueError) as error:
        return None, str(error)


def _status_remarks(status: Status, *, stale: bool) -> Iterator[str]:
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
        counts = {name: getattr(neighbor, which) for name, neighbor in status.neighbors.items()}
        if texts := [f"{count} from {name}" for name, count in counts.items() if count]:
            yield f"{verb}: {', '.join(texts)}"
    if status.expires is not None and status.expires <= WARN_DAYS:
        yield "certificate has expired" if status.expires < 0 else f"certificate expires in {status.expires:.1f} days"
    if status.recoveries:
        yield f"went back to an earlier function {status.recoveries}×"
    if status.bad_rows:
        yield f"{status.bad_rows} invalid rows"
    if status.trouble:
        yield f"no checkpoint: {status.trouble}"
