"""An observer that records a run for its page."""

from __future__ import annotations

from kernelmesh.dashboard.recorder import Recorder
from kernelmesh.experiments import events
from kernelmesh.experiments.settings import settings_of

__all__ = ["RunRecorder"]


class RunRecorder(Recorder):
    """Records the networks of a run as its events report them."""

    def __call__(self, event: events.Event) -> None:
        """Handle an event."""
        match event:
            case events.Started(config=config):
                self.config = settings_of(config)
            case events.NetworkStarted(part=part, network=network, rounds_before=rounds):
                samples = [(each.stream.points, each.stream.targets) for each in network.streams]
                rows = [each.rows for each in network.streams]
                held_out = network.points, network.targets
                self.begin(network.agent, network.graph, samples, rows, held_out, part=part, resumes_at=rounds)
            case events.Measured(round=now, measures=measures, agents=agents):
                self.add(now, measures, agents)
            case events.Finished(outcome=outcome):
                self.finish(outcome.name, str(outcome))
            case _:
                pass
