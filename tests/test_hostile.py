"""Members that are let in and mean harm, over zenoh, with processes: slow tests."""

import numpy as np
import pytest

from hostile import Hostile, memory, slowest_status
from kernelmesh.messages import Function, Offer, Terms, encode
from mesh import Mesh

pytestmark = pytest.mark.slow


def words(protocol, order, *, scale=1.0, spread=1.0, seed=0):
    rng = np.random.default_rng(seed)
    centers, weights = spread * rng.normal(size=(order, 2)), scale * rng.normal(size=(order, 5))
    if protocol == "diffusion":
        return encode(Function(centers, weights))
    return encode(Offer(centers, weights, Terms(0, 1, 0, 0, 0.5)))


@pytest.mark.parametrize("protocol", ["exact-diffusion", "diffusion"])
def test_functions_of_many_points(protocol, tmp_path):
    """No agent stops answering for more than 2 s, none ends, memory stays, and restarts work."""
    with Mesh(tmp_path / "mesh", agents=3, topology="ring", protocol=protocol, partition="identical", rate=1000.0) as mesh:
        honest = mesh.names[:2]
        sizes = iter([500, 3000, 15_000, 250_000])
        now = {"words": b""}
        with Hostile(mesh.files[2], lambda neighbor, frame: now["words"]):
            mesh.names = honest
            mesh.start(*honest)
            mesh.wait_for_samples(3000)
            calm = {name: memory(mesh.processes[name].pid) for name in honest}
            for order in sizes:
                now["words"] = words(protocol, order, spread=100.0)
                slowest = slowest_status(mesh, honest, 6.0)
                grown = {name: memory(mesh.processes[name].pid) - calm[name] for name in honest}
                print(f"{protocol} {order}: slowest answer {slowest:.2f} s, memory {max(grown.values()):+.0f} MB")
                assert slowest < 2.0
                assert max(grown.values()) < 200.0
                assert all(mesh.processes[name].poll() is None for name in honest)
            for name in honest:
                assert mesh.status(name).neighbors[mesh.files[2].stem].refused > 0
                samples = mesh.status(name).samples
                mesh.kill(name)
                mesh.start(name)
                mesh.wait(lambda all_, name=name, samples=samples: all_[name].samples > samples)
        mesh.stop()
