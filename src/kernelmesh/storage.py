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
from kernelmesh.checks import Floats, integer, matrix, non_negative
from kernelmesh.consensus import EdgeMemory
from kernelmesh.consensus.base import PastOffer
from kernelmesh.errors import MISSING, InvalidArgument, KernelMeshError, UnreadableFile, Verbatim
from kernelmesh.messages import Offer, Terms
from kernelmesh.numerics.compression import Model
from kernelmesh.numerics.expansion import Expansion
from kernelmesh.numerics.inverse_gram import InverseGram
from kernelmesh.numerics.reservoir import Reservoir
from kernelmesh.numerics.statistics import Statistics
from kernelmesh.screening import Health

__all__ = ["pack", "read", "understood", "unpack", "write"]

VERSION = "4"
_READABLE = ("2", "3", "4")
# Names that changed in version 4.
_LATEST = 1 << 62  # the largest plausible count
_WIDEST = 1 << 15  # rows of a workspace: 8 GB
_FORMER = {"centres": "centers", "yardstick": "baseline_loss"}


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
    if metadata.get("version") not in _READABLE:
        rule, found = f"{', '.join(_READABLE[:-1])} or {_READABLE[-1]}", metadata.get("version")
        raise UnreadableFile(f"{path}: version must be {rule}, got {found!r}; a newer kernelmesh may have written it")
    digest = metadata.pop("digest", None)
    if digest != _digest(arrays, metadata):
        raise UnreadableFile(f"{path}: contents must match their digest; the file was damaged or changed")
    if metadata.get("kind") != kind:
        raise UnreadableFile(f"{path}: must hold {kind}, got {metadata.get('kind')}")
    if metadata["version"] != VERSION:
        arrays = {_renamed(name): array for name, array in arrays.items()}
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


def _renamed(name: str) -> str:
    return ".".join("/".join(_FORMER.get(word, word) for word in part.split("/")) for part in name.split("."))


def pack(
    state: State, names: Sequence[Hashable] | Mapping[Hashable, int], *, workspace: bool = False
) -> dict[str, NDArray[Any]]:
    """The contents of a state; neighbors are numbered as in `names`, which may also be a mapping to numbers.

    With its workspace (M² numbers more), its reservoir and its latest mini-batch (which contain samples), learning continues
    exactly as if uninterrupted; otherwise, P is recomputed and the reservoir is filled again.
    """
    functions: dict[str, Expansion | Offer | PastOffer] = {"function": state.model.function}
    if state.shown is not None:
        functions["shown"] = state.shown
    arrays: dict[str, NDArray[Any]] = {
        "clock": np.array([state.samples, state.steps], dtype=np.int64),
        "baseline_loss": np.array([state.baseline_loss]),
        **(_pack_workspace(state.model) if workspace else {}),
        **{f"model.{name}": array for name, array in state.model.arrays().items()},
    }
    if state.replayed:
        arrays["replayed"] = np.array([state.replayed], dtype=np.int64)
    if workspace and state.reservoir is not None:
        arrays |= {f"reservoir.{name}": array for name, array in state.reservoir.arrays().items()}
    if state.health is not None:
        arrays["health"] = np.array(state.health)
    if workspace and state.newest is not None:
        arrays["newest.points"], arrays["newest.targets"] = state.newest[0], np.asarray(state.newest[1])
    for neighbor, edge in state.edges.items():
        of = f"edge.{names[neighbor] if isinstance(names, Mapping) else names.index(neighbor)}"
        arrays[of] = np.array([edge.epoch, edge.done, edge.acts, edge.behind], dtype=np.int64)
        for part in ("dual", "handed", *_OFFERS):
            if (kept := getattr(edge, part)) is not None:
                functions[f"{of}.{part}"] = kept
    for name, f in functions.items():
        arrays[f"{name}.centers"], arrays[f"{name}.weights"] = f.centers, f.weights
        if isinstance(f, Statistics | Offer | PastOffer) and (moments := f.moments) is not None:
            arrays[f"{name}.moments"] = moments
        if isinstance(f, Offer | PastOffer):
            terms = f.terms
            arrays[f"{name}.terms"] = np.array([terms.epoch, terms.exchange, terms.done, terms.digest], dtype=np.int64)
            arrays[f"{name}.share"] = np.array([terms.share])
    return arrays


_OFFERS = ("offered", "before", "early")


def _pack_workspace(model: Model) -> dict[str, NDArray[Any]]:
    workspace = model.workspace
    if workspace is None or workspace.generation != model.generation:  # none, or one owned by a newer state
        return {}
    clock = [workspace.width, workspace.changes, workspace.generation, workspace.probed]
    return {
        "workspace.inverse": workspace.matrix.copy(),
        "workspace.clock": np.array(clock, dtype=np.int64),
        "workspace.numbers": np.array([model.square_norm, workspace.bound]),
    }


def _unpack_workspace(model: Model, arrays: Mapping[str, NDArray[Any]]) -> Model:
    """The model with the workspace from the file, if any."""
    if not any(key.startswith("workspace.") for key in arrays) or model.workspace is None:
        return model
    order = model.function.order
    inverse = matrix("file", "workspace.inverse", arrays["workspace.inverse"], rows=order, columns=order)
    width, changes, generation, probed = (integer("file", "workspace.clock", n, minimum=0) for n in arrays["workspace.clock"])
    if width > _WIDEST:
        raise InvalidArgument("file", "workspace.clock", f"have a width of at most {_WIDEST}", width)
    square_norm, bound = (float(n) for n in arrays["workspace.numbers"])
    non_negative("file", "workspace.numbers", bound)
    if not math.isnan(square_norm):  # it is, with rules that do not track it
        non_negative("file", "workspace.numbers", square_norm)
    workspace = InverseGram.restored(inverse, width=width, changes=changes, generation=generation, probed=probed, bound=bound)
    return dataclasses.replace(model, square_norm=square_norm, workspace=workspace, generation=generation)


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


def unpack(agent: Agent, arrays: Mapping[str, NDArray[Any]], *, name: Hashable, names: Sequence[Hashable]) -> State:
    """Restore a state from the output of `pack`, validating everything."""
    with np.errstate(over="raise", invalid="raise"):  # such large numbers are not a valid function
        return _unpacked(agent, _Arrays(arrays), name, names)


def _unpacked(agent: Agent, arrays: _Arrays, name: Hashable, names: Sequence[Hashable]) -> State:
    def function(of: str) -> Expansion | None:
        if f"{of}.centers" not in arrays:
            return None
        centers = matrix("file", f"{of}.centers", arrays[f"{of}.centers"], columns=agent.dimension)
        weights = matrix("file", f"{of}.weights", arrays[f"{of}.weights"], columns=agent.outputs, rows=len(centers))
        # what is shown is a function, whatever is gathered
        gathers = agent.rule.gathers if of == "function" else agent.consensus.exchange.statistics and of != "shown"
        if not gathers:
            return Expansion(agent.kernel, centers, weights)
        return Statistics(agent.kernel, centers, weights, arrays[f"{of}.moments"])

    def offer(of: str) -> Offer | None:
        f = function(of)
        if f is None:
            return None
        epoch, exchange, done, digest = (integer("file", f"{of}.terms", n, minimum=0) for n in arrays[f"{of}.terms"])
        share = _one("file", f"{of}.share", arrays[f"{of}.share"])
        if not 0.0 <= share <= 1.0:
            raise InvalidArgument("file", f"{of}.share", "be a number from 0 to 1", share)
        moments = f.moments if isinstance(f, Statistics) else None
        return Offer(
            f.centers, f.weights, Terms(epoch, exchange, done, digest, share), moments=moments, in_doubt=moments is not None
        )

    def edge(of: str) -> EdgeMemory:
        epoch, done, acts, behind = (integer("file", of, n, minimum=0) for n in arrays[of])
        return EdgeMemory(
            dual=function(f"{of}.dual"),
            handed=function(f"{of}.handed"),
            epoch=epoch,
            done=done,
            acts=acts,
            behind=bool(behind),
            offered=offer(f"{of}.offered"),
            before=None if (past := offer(f"{of}.before")) is None else PastOffer.of(past),
            early=offer(f"{of}.early"),
        )

    samples, steps = (integer("file", "clock", n, minimum=0) for n in arrays["clock"])
    arrays["function.centers"]  # the required one
    found = function("function")
    started = agent.start(name=name, function=found)
    if found is not None and started.function.order == found.order:
        # the file has the points in order; `start` may have dropped some
        model = _unpack_workspace(started.model, arrays)
        if "model.clock" in arrays and not (np.abs(arrays["model.clock"]) <= _LATEST).all():
            raise InvalidArgument("file", "model.clock", f"have numbers of at most {_LATEST}", Verbatim("larger numbers"))
        of_model = _Arrays({key.removeprefix("model."): arrays[key] for key in arrays if key.startswith("model.")})
        started = dataclasses.replace(started, model=agent.rule.unpack(model, of_model))
        of_model.check_all_read()
    numbers = [int(key.split(".")[1]) for key in arrays if key.startswith("edge.") and key.count(".") == 1]
    if numbers and not 0 <= min(numbers) <= max(numbers) < len(names):
        raise InvalidArgument(
            "file", "edge", f"have numbers below {len(names)}", Verbatim(f"{min(numbers)} to {max(numbers)}")
        )
    state = dataclasses.replace(
        started,
        samples=samples,
        steps=steps,
        edges={names[n]: edge(f"edge.{n}") for n in sorted(numbers)},
        shown=agent.rule.shown(started.model, function("shown")),
        baseline_loss=non_negative("file", "baseline_loss", _one("file", "baseline_loss", arrays["baseline_loss"])),
        replayed=sum(integer("file", "replayed", n, minimum=0) for n in arrays.get("replayed", ())),
        reservoir=_unpack_reservoir(agent, started.reservoir, arrays),
        newest=_unpack_newest(agent, arrays),
        health=_unpack_health(agent, arrays.get("health")),
    )
    arrays.check_all_read()
    return state


def _one(owner: str, argument: str, array: NDArray[Any]) -> float:
    """The number in an array of one."""
    if array.shape != (1,) or array.dtype.kind != "f":
        found = Verbatim(f"shape {array.shape}, dtype {array.dtype}")
        raise InvalidArgument(owner, argument, "be an array of one floating-point number", found)
    return float(array[0])


def _unpack_health(agent: Agent, array: NDArray[Any] | None) -> Health | None:
    """The health of the agent, if it uses screening."""
    if array is None:
        return None
    if array.shape != (2,) or array.dtype.kind != "f":
        found = Verbatim(f"shape {array.shape}, dtype {array.dtype}")
        raise InvalidArgument("file", "health", "be an array of two floating-point numbers", found)
    health = Health(*(non_negative("file", "health", float(number)) for number in array))
    return None if agent.screening is None else health


def _unpack_newest(agent: Agent, arrays: _Arrays) -> tuple[Floats, Any] | None:
    """The latest mini-batch in the file, if the agent uses it."""
    if "newest.points" not in arrays:
        return None
    points = matrix("file", "newest.points", arrays["newest.points"], columns=agent.dimension)
    targets = agent.loss.check("file", arrays["newest.targets"], rows=len(points), outputs=agent.outputs)
    return (points, targets) if agent.keeps_newest and len(points) else None


def _unpack_reservoir(agent: Agent, empty: Reservoir | None, arrays: _Arrays) -> Reservoir | None:
    """The reservoir in the file, if the agent still has one; empty if the file has none."""
    parts = {key.removeprefix("reservoir."): arrays[key] for key in arrays if key.startswith("reservoir.")}
    if empty is None or not parts:
        return empty
    found = empty.restored(parts, dimension=agent.dimension)
    if found.points is None:
        return found
    targets = agent.loss.check("file", found.targets, rows=found.kept, outputs=agent.outputs)
    return dataclasses.replace(found, targets=targets)
