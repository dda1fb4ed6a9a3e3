"""Checkpoints of shards: one safetensors file per shard and round, in a folder or at any fsspec URL."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from kernelmesh import storage
from kernelmesh.errors import MissingExtra

__all__ = ["name", "newest", "read", "tidy", "write"]

_KIND = "shard"
_KEPT = 2


def name(number: int, part: int) -> str:
    """The name of a shard's checkpoint file after a round.

    >>> name(20, 1)
    'part-1-round-00000020.safetensors'
    """
    return f"part-{part}-round-{number:08d}.safetensors"


def _system(address: str) -> tuple[Any, str] | None:
    """The file system of an address and the path in it; None for a local folder."""
    if "://" not in address:
        return None
    try:
        from fsspec.core import url_to_fs
    except ModuleNotFoundError as error:
        raise MissingExtra("Checkpoints at an address", "ray") from error
    system, path = url_to_fs(address)
    return system, path


def write(address: str, file: str, *, arrays: Mapping[str, NDArray[Any]], settings: Any) -> None:
    """Write a checkpoint atomically."""
    remote = _system(address)
    if remote is None:
        folder = Path(address)
        folder.mkdir(parents=True, exist_ok=True)
        storage.write(folder / file, kind=_KIND, arrays=arrays, settings=settings)
        return
    system, path = remote
    system.makedirs(path, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder_name:
        local = Path(folder_name) / file
        storage.write(local, kind=_KIND, arrays=arrays, settings=settings)
        system.put_file(str(local), f"{path}/.{file}")
        system.mv(f"{path}/.{file}", f"{path}/{file}")


def read(address: str, file: str) -> tuple[dict[str, NDArray[Any]], Any]:
    """Read and validate a checkpoint."""
    remote = _system(address)
    if remote is None:
        return storage.read(Path(address) / file, kind=_KIND)
    system, path = remote
    with tempfile.TemporaryDirectory() as folder_name:
        local = Path(folder_name) / file
        system.get_file(f"{path}/{file}", str(local))
        return storage.read(local, kind=_KIND)


def _listed(address: str, part: int) -> dict[int, str]:
    """The rounds for which a shard has a checkpoint, with their paths."""
    remote = _system(address)
    if remote is None:
        paths = [str(path) for path in Path(address).glob(f"part-{part}-round-*.safetensors")]
    else:
        system, path = remote
        paths = [str(found) for found in system.glob(f"{path}/part-{part}-round-*.safetensors")]
    return {int(path.rpartition("-")[2].removesuffix(".safetensors")): path for path in sorted(paths)}


def newest(address: str, parts: int) -> int:
    """The latest round for which every shard has a checkpoint; 0 if there is none."""
    rounds = [set(_listed(address, part)) for part in range(parts)]
    return max(set.intersection(*rounds), default=0)


def tidy(address: str, part: int, *, kept: int = _KEPT) -> None:
    """Delete all but the newest checkpoints of a shard. With two per shard, all shards have one round in common."""
    remote, old = _system(address), list(_listed(address, part).values())[: -kept or None]
    for path in old:
        if remote is None:
            Path(path).unlink(missing_ok=True)
        else:
            remote[0].rm(path)
