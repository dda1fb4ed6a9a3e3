"""Files for models and states: safetensors with settings, a version and a digest. Nothing is unpickled."""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from kernelmesh.agent import Agent, State
from kernelmesh.checks import integer, matrix, non_negative
from kernelmesh.errors import MISSING, InvalidArgument, KernelMeshError, UnreadableFile, Verbatim
from kernelmesh.learners import Landmarks
from kernelmesh.learners.landmarks import LandmarksModel
from kernelmesh.numerics.compression import Model
from kernelmesh.numerics.function import Function
from kernelmesh.numerics.inverse_gram import InverseGram
from kernelmesh.protocols import Relay
from kernelmesh.protocols.relay.agreement import scaled
from kernelmesh.protocols.relay.memory import load, store

__all__ = ["pack", "read", "understood", "unpack", "write"]

VERSION = "1"


def _digest(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> str:
    total = hashlib.sha256()
    for name in sorted(metadata):
        total.update(f"{name}={metadata[name]}\n".encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name}:{array.dtype.str}:{','.join(map(str, array.shape))}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def write(path: str | os.PathLike[str], *, kind: str, arrays: Mapping[str, NDArray[Any]], settings: Any) -> None:
    """Write a file atomically: it appears under its name only when it is complete."""
    path = Path(path)
    if path.is_dir():
        found = Verbatim(f"the folder {str(path)!r}")
        raise InvalidArgument("save", "path", "be the path of a file", found, remedy="add a file name")
    if not path.parent.is_dir():
        found = Verbatim(f"{str(path)!r}")
        raise InvalidArgument("save", "path", "be in an existing folder", found, remedy=f"create {str(path.parent)!r} first")
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
    """Read the arrays and settings of a file, or raise `UnreadableFile` with the reason."""
    path = Path(path)
    if path.is_dir():
        raise UnreadableFile(f"{path}: must be a file, got a folder; specify a file in it")
    try:
        with safe_open(path, framework="np") as file:
            metadata = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a dict)
    except (SafetensorError, ValueError) as error:
        raise UnreadableFile(f"{path}: must be a complete safetensors file: {error}") from None
    if metadata.get("format") != "kernelmesh":
        raise UnreadableFile(f"{path}: must be a kernelmesh file, got another safetensors file")
    if metadata.get("version") != VERSION:
        raise UnreadableFile(
            f"{path}: version must be {VERSION}, got {metadata.get('version')!r}; another kernelmesh wrote it"
        )
    digest = metadata.pop("digest", None)
    if digest != _digest(arrays, metadata):
        raise UnreadableFile(f"{path}: contents must match their digest; the file was damaged or changed")
    if metadata.get("kind") != kind:
        raise UnreadableFile(f"{path}: must hold {kind}, got {metadata.get('kind')}")
    with understood(path, "settings in JSON"):
        return arrays, json.loads(metadata["settings"])


@contextlib.contextmanager
def understood(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Raise `UnreadableFile` for a file whose contents break the code that reads them although its digest matches."""
    broken: Exception | None = None
    try:
        yield
    except InvalidArgument as error:
        broken = error
    except KernelMeshError:
        raise  # already describes the problem
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        broken = error
    if broken is not None:
        raise UnreadableFile(f"{path}: must hold {what} ({type(broken).__name__}: {broken})")


def pack(state: State, *, workspace: bool = False) -> dict[str, NDArray[Any]]:
    """The contents of a state.

    With its workspace (M² numbers more, and the samples that the agent keeps), learning continues exactly as if
    uninterrupted; otherwise, P is recomputed, and the samples stay with the agent.
    """
    model = state.model if workspace else state.model.without_samples()
    arrays: dict[str, NDArray[Any]] = {
        "clock": np.array([state.samples, state.steps], dtype=np.int64),
        "baseline_loss": np.array([state.baseline_loss]),
        **(_pack_workspace(state.model) if workspace else {}),
        **{f"model.{name}": array for name, array in model.arrays().items()},
    }
    if state.memory is not None:
        arrays["memory"] = np.frombuffer(store(state.memory), dtype=np.uint8)
    f = state.model.function
    return {**arrays, "function.points": f.points, "function.weights": f.weights}


def _pack_workspace(model: Model) -> dict[str, NDArray[Any]]:
    inverse = model.inverse
    if inverse is None:
        return {}
    return {
        "workspace.inverse": inverse.matrix,
        "workspace.clock": np.array([inverse.changes, inverse.probed], dtype=np.int64),
        "workspace.numbers": np.array([model.square_norm, inverse.bound]),
    }


def _unpack_workspace(model: Model, arrays: Mapping[str, NDArray[Any]]) -> Model:
    """The model with P from the file, if any."""
    if not any(key.startswith("workspace.") for key in arrays) or model.inverse is None:
        return model
    order = model.function.order
    inverse = matrix("file", "workspace.inverse", arrays["workspace.inverse"], rows=order, columns=order)
    changes, probed = (integer("file", "workspace.clock", n, minimum=0) for n in arrays["workspace.clock"])
    square_norm, bound = (float(n) for n in arrays["workspace.numbers"])
    non_negative("file", "workspace.numbers", bound)
    if not math.isnan(square_norm):  # it is, with learners that do not track it
        non_negative("file", "workspace.numbers", square_norm)
    restored = InverseGram(inverse, changes=changes, probed=probed, bound=bound)
    return dataclasses.replace(model, square_norm=square_norm, inverse=restored)


class _Arrays(dict[str, NDArray[Any]]):
    """The arrays of a file, which record what has been read; a missing array is reported by name."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        super().__init__(arrays)
        self._read: set[str] = set()

    def __getitem__(self, key: str) -> NDArray[Any]:
        if key not in self:
            raise InvalidArgument("file", key, "be there", MISSING)
        self._read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 (which would call itself)

    def check_all_read(self) -> None:
        """Reject unused arrays: either they should not be there, or what they belong to is missing."""
        # the arrays of a model or a workspace are useless if settings have changed
        left = [key for key in self if key not in self._read and not key.startswith(("model.", "workspace."))]
        if left:
            raise InvalidArgument("file", left[0], "belong to a part of the state", Verbatim("one that is missing"))


def unpack(
    agent: Agent, arrays: Mapping[str, NDArray[Any]], *, name: Hashable, names: Sequence[Hashable] | None = None
) -> State:
    """Restore a state from the output of `pack`, validating everything; `names` has those of all agents, by number."""
    with np.errstate(over="raise", invalid="raise"):  # such large numbers are not a valid function
        return _unpacked(agent, _Arrays(arrays), name, names)


def _unpacked(agent: Agent, arrays: _Arrays, name: Hashable, names: Sequence[Hashable] | None) -> State:
    samples, steps = (integer("file", "clock", n, minimum=0) for n in arrays["clock"])
    centers = matrix("file", "function.points", arrays["function.points"], columns=agent.dimension)
    weights = matrix("file", "function.weights", arrays["function.weights"], columns=agent.outputs, rows=len(centers))
    memory, kernel, learner = None, agent.kernel, agent.learner
    if isinstance(agent.protocol, Relay) and isinstance(learner, Landmarks):
        data = arrays["memory"].astype(np.uint8).tobytes()
        memory = load(data, dimension=agent.dimension, outputs=agent.outputs, names=names)
        kernel = scaled(kernel, memory.points.scales)
        learner = dataclasses.replace(learner, regularization=memory.points.strength * learner.regularization)
    function = Function.of(kernel, centers, weights)
    model = learner.start(function)
    if model.function.order == len(centers):
        # the file has the points in order; `start` may have dropped some
        if "model.clock" in arrays and not (np.abs(arrays["model.clock"]) <= 1 << 62).all():
            raise InvalidArgument("file", "model.clock", "have plausible counts", Verbatim("larger numbers"))
        of_model = _Arrays({key.removeprefix("model."): arrays[key] for key in arrays if key.startswith("model.")})
        # `start` may have rounded the weights
        model = agent.learner.unpack(_unpack_workspace(dataclasses.replace(model, function=function), arrays), of_model)
        of_model.check_all_read()
        if isinstance(model, LandmarksModel) and len(model.kept):
            agent.check(model.kept.points, model.kept.targets)
    state = State(
        name=name,
        model=model,
        samples=samples,
        steps=steps,
        shown=agent.learner.shown(model),
        baseline_loss=non_negative("file", "baseline_loss", _one("file", "baseline_loss", arrays["baseline_loss"])),
        memory=memory,
    )
    arrays.check_all_read()
    return state


def _one(owner: str, argument: str, array: NDArray[Any]) -> float:
    """The number in an array of one."""
    if array.shape != (1,) or array.dtype.kind != "f":
        found = Verbatim(f"shape {array.shape}, dtype {array.dtype}")
        raise InvalidArgument(owner, argument, "be an array of one floating-point number", found)
    return float(array[0])
