"""Compile the inner loops once, so that the first demo or test does not wait for them; later runs load them from disk."""

import itertools

import numpy as np

from kernelmesh import (
    Agent,
    ArrayStream,
    Averaged,
    Diffusion,
    Gaussian,
    Gradient,
    Graph,
    Hinge,
    Landmarks,
    Logistic,
    Mixture,
    OnlineKernelClassifier,
    OnlineKernelRegressor,
    Penalty,
    Relay,
    simulate,
)

AGENTS = 4


def main() -> None:
    """Run every protocol and learner for a few rounds."""
    mixture = Mixture.draw(classes=3, rng=np.random.default_rng(0))
    points, labels = mixture.sample(128 * AGENTS, rng=np.random.default_rng(1))
    common = {"dimension": 2, "outputs": 3, "kernel": Gaussian(bandwidth=0.6)}
    protocols = (Penalty(coupling=0.02), Penalty(coupling=0.02, implicit=True), Diffusion())
    learners = (Gradient(step_size=1.0), Averaged(step_size=1.0))
    agents = [
        Agent(**common, loss=loss, protocol=protocol, learner=learner)
        for protocol, loss, learner in itertools.product(protocols, (Logistic(), Hinge()), learners)
    ]
    agents.append(Agent(**common, loss=Logistic(), learner=Landmarks(), protocol=Relay()))
    for agent in agents:
        streams = [ArrayStream(points[i::AGENTS], labels[i::AGENTS]) for i in range(AGENTS)]
        for _ in simulate(agent, Graph.ring(AGENTS), streams):
            pass
    OnlineKernelClassifier().fit(points, labels)
    OnlineKernelRegressor().fit(points, np.sin(points[:, 0]))


if __name__ == "__main__":
    main()
