"""Files that hold what was learned: safetensors with a description, a version and a digest. Nothing is unpickled."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from kernelmesh import consensus
from kernelmesh.agent import Agent, State
from kernelmesh.checks import integer, matrix, non_negative
from kernelmesh.consensus import Edge
from kernelmesh.errors import UnreadableFile
from kernelmesh.messages import Offer
from kernelmesh.numerics import compression, kernels, losses, schedules
from kernelmesh.numerics.compression import Model
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.graphs import Graph
from kernelmesh.numerics.inverse_gram import InverseGram

__all__ = ["KINDS", "describe", "pack", "read", "restore", "unpack", "write"]

VERSION = "3"
_READABLE = ("2", "3")  # 3 only adds parts that need not be there

KINDS: Mapping[str, tuple[type[Any], ...]] = {
    "kernel": (
        kernels.Gaussian,
        kernels.Laplacian,
        kernels.Linear,
        kernels.Matern32,
        kernels.Matern52,
        kernels.Polynomial,
        kernels.Product,
        kernels.Scaled,
        kernels.Sum,
    ),
    "loss": (losses.Hinge, losses.Huber, losses.Logistic, losses.Squared, losses.SquaredHinge),
    "schedule": (
        schedules.Constant,
        schedules.Doubling,
        schedules.InverseRoot,
        schedules.InverseTime,
        schedules.Power,
    ),
    "compression": (compression.Komp, compression.Uncompressed),
    "consensus": (
        consensus.Diffusion,
        consensus.ExactDiffusion,
        consensus.Hilbert,
        consensus.Local,
        consensus.Penalty,
        consensus.Proximal,
        consensus.Symmetric,
    ),
    "graph": (Graph,),
}
"""The settings that files may name, by the role that they play."""

_KNOWN: dict[str, type[Any]] = {kind.__name__: kind for kinds in KINDS.values() for kind in kinds}


def describe(value: Any) -> Any:
    """Turn settings into something JSON can hold.

    >>> from kernelmesh import Gaussian
    >>> describe(Gaussian(bandwidth=2.0))
    {'kind': 'Gaussian', 'bandwidth': 2.0}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | list):
        return {"kind": "tuple", "items": [describe(item) for item in value]}
    if type(value).__name__ in _KNOWN and _KNOWN[type(value).__name__] is type(value):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    raise ValueError(f"storage: settings must be of a kind that comes with kernelmesh to be saved, got {value!r}")


def restore(description: Any) -> Any:
    """Turn a description back into settings, checking every one of them as if it had just been written.

    >>> restore({'kind': 'Gaussian', 'bandwidth': 2.0})
    Gaussian(bandwidth=2.0)
    """
    if not isinstance(description, dict):
        return description
    fields = dict(description)
    kind = fields.pop("kind", None)
    if kind == "tuple":
        return tuple(restore(item) for item in fields["items"])
    if kind not in _KNOWN:
        raise UnreadableFile(f"storage: kind must be one of {', '.join(sorted(_KNOWN))}, got {kind!r}")
    try:
        return _KNOWN[kind](**{name: restore(value) for name, value in fields.items()})
    except TypeError as error:
        raise UnreadableFile(f"storage: {error}") from None


def _digest(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> str:
    total = hashlib.sha256()
    for name in sorted(metadata):
        total.update(f"{name}={metadata[name]}\n".encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name}:{array.dtype.str}:{array.shape}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def write(path: str | os.PathLike[str], *, kind: str, arrays: Mapping[str, NDArray[Any]], settings: Any) -> None:
    """Write a file in one piece: it appears under its name only when it is complete."""
    path = Path(path)
    metadata = {"format": "kernelmesh", "version": VERSION, "kind": kind, "settings": json.dumps(settings)}
    metadata["digest"] = _digest(arrays, metadata)
    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike[str], *, kind: str) -> tuple[dict[str, NDArray[Any]], Any]:
    """Read a file back: its arrays and settings, or `UnreadableFile` saying what is wrong with it."""
    path = Path(path)
    try:
        with safe_open(path, framework="np") as file:
            metadata = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a dict)
    except (SafetensorError, ValueError) as error:
        raise UnreadableFile(f"{path}: must be a complete safetensors file: {error}") from None
    if metadata.get("format") != "kernelmesh":
        raise UnreadableFile(f"{path}: must be a kernelmesh file, got another safetensors file")
    if metadata.get("version") not in _READABLE:
        raise UnreadableFile(f"{path}: version must be {' or '.join(_READABLE)}, got {metadata.get('version')!r}")
    digest = metadata.pop("digest", None)
    if digest != _digest(arrays, metadata):
        raise UnreadableFile(f"{path}: contents must match their digest; the file was damaged or changed")
    if metadata.get("kind") != kind:
        raise UnreadableFile(f"{path}: must hold {kind}, got {metadata.get('kind')}")
    return arrays, json.loads(metadata["settings"])


def pack(state: State, names: Sequence[Hashable], *, workspace: bool = False) -> dict[str, NDArray[Any]]:
    """Everything a state holds; neighbors are numbered as in `names`.

    With its workspace, M² numbers more, whoever goes on from the file goes on bit for bit; else P is formed anew.
    """
    functions: dict[str, Expansion | Offer] = {"function": state.model.function}
    if state.shown is not None:
        functions["shown"] = state.shown
    arrays: dict[str, NDArray[Any]] = {
        "clock": np.array([state.samples, state.steps], dtype=np.int64),
        "baseline_loss": np.array([state.baseline_loss]),
        **(_pack_workspace(state.model) if workspace else {}),
    }
    for neighbor, edge in state.edges.items():
        of = f"edge.{names.index(neighbor)}"
        arrays[of] = np.array([edge.epoch, edge.done, edge.fresh, edge.behind], dtype=np.int64)
        for part in ("dual", "handed", *_OFFERS):
            if (kept := getattr(edge, part)) is not None:
                functions[f"{of}.{part}"] = kept
    for name, f in functions.items():
        arrays[f"{name}.centers"], arrays[f"{name}.weights"] = f.centers, f.weights
        if isinstance(f, Offer):
            arrays[f"{name}.terms"] = np.array([f.epoch, f.exchange, f.done, f.digest], dtype=np.int64)
            arrays[f"{name}.share"] = np.array([f.share])
    return arrays


_OFFERS = ("offered", "before", "early")


def _pack_workspace(model: Model) -> dict[str, NDArray[Any]]:
    workspace = model.workspace
    if workspace is None or workspace.generation != model.generation:  # none, or one that a newer state owns
        return {}
    clock = [workspace.width, workspace.changes, workspace.generation, workspace.probed]
    return {
        "workspace.inverse": workspace.matrix.copy(),
        "workspace.clock": np.array(clock, dtype=np.int64),
        "workspace.numbers": np.array([model.square_norm, workspace.bound]),
    }


def _unpack_workspace(model: Model, arrays: Mapping[str, NDArray[Any]]) -> Model:
    """The model with the workspace of the file, if there is one."""
    if "workspace.inverse" not in arrays or model.workspace is None:
        return model
    order = model.function.order
    inverse = matrix("file", "workspace.inverse", arrays["workspace.inverse"], rows=order, columns=order)
    width, changes, generation, probed = (
        integer("file", "workspace.clock", n, minimum=0) for n in arrays["workspace.clock"]
    )
    square_norm, bound = (non_negative("file", "workspace.numbers", float(n)) for n in arrays["workspace.numbers"])
    workspace = InverseGram.restored(
        inverse, width=width, changes=changes, generation=generation, probed=probed, bound=bound
    )
    return dataclasses.replace(model, square_norm=square_norm, workspace=workspace, generation=generation)


def unpack(agent: Agent, arrays: Mapping[str, NDArray[Any]], *, name: Hashable, names: Sequence[Hashable]) -> State:
    """The state that `pack` took apart, with everything checked."""

    def function(of: str) -> Expansion | None:
        if f"{of}.centers" not in arrays:
            return None
        centers = matrix("file", f"{of}.centers", arrays[f"{of}.centers"], columns=agent.dimension)
        weights = matrix("file", f"{of}.weights", arrays[f"{of}.weights"], columns=agent.outputs, rows=len(centers))
        return Expansion(agent.kernel, centers, weights)

    def offer(of: str) -> Offer | None:
        f = function(of)
        if f is None:
            return None
        epoch, exchange, done, digest = (integer("file", f"{of}.terms", n, minimum=0) for n in arrays[f"{of}.terms"])
        share = non_negative("file", f"{of}.share", float(arrays[f"{of}.share"][0]))
        return Offer(f.centers, f.weights, epoch, exchange, done, digest, share)

    def edge(of: str) -> Edge:
        epoch, done, fresh, behind = (integer("file", of, n, minimum=0) for n in arrays[of])
        return Edge(
            dual=function(f"{of}.dual"),
            handed=function(f"{of}.handed"),
            epoch=epoch,
            done=done,
            fresh=bool(fresh),
            behind=bool(behind),
            **{part: offer(f"{of}.{part}") for part in _OFFERS},
        )

    samples, steps = (integer("file", "clock", n, minimum=0) for n in arrays["clock"])
    found = function("function")
    started = agent.start(name=name, function=found)
    if found is not None and started.function.order == found.order:
        # the file has the points in their order; `start` may have left some out
        started = dataclasses.replace(started, model=_unpack_workspace(started.model, arrays))
    numbers = [int(key.split(".")[1]) for key in arrays if key.startswith("edge.") and key.count(".") == 1]
    return dataclasses.replace(
        started,
        samples=samples,
        steps=steps,
        edges={names[n]: edge(f"edge.{n}") for n in sorted(numbers)},
        shown=function("shown"),
        baseline_loss=float(arrays["baseline_loss"][0]),
    )
