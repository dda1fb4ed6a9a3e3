"""A file of names that an operator edits while agents run: one name per line, # begins a comment."""

import logging
import math
from pathlib import Path

from kernelmesh.errors import InvalidArgument, UnreadableFile
from kernelmesh.runtimes.membership import agent_name

__all__ = ["NameList", "read_names"]

_log = logging.getLogger("kernelmesh.agent")


def read_names(path: Path) -> frozenset[str]:
    """The names in a file; none if it does not exist. Raises `UnreadableFile` if it is not a list of names.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "quarantine.txt"
    ...     _ = path.write_text("south  # sends nonsense since Monday")
    ...     read_names(path)
    frozenset({'south'})
    """
    try:
        with path.open("rb") as file:
            data = file.read((1 << 20) + 1)
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise UnreadableFile(f"{path}: must be a readable file ({error.strerror})") from None
    try:
        if len(data) > 1 << 20:
            raise UnreadableFile(f"{path}: must have at most {1 << 20} bytes")
        lines = (line.partition("#")[0].strip() for line in data.decode().splitlines())
        return frozenset(agent_name("", "", line) for line in lines if line)
    except (InvalidArgument, UnicodeDecodeError):
        raise UnreadableFile(f"{path}: must have one name per line, and comments that begin with #") from None


class NameList:
    """The names in a file that is checked every second. While it cannot be read, the previous names remain in effect."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: frozenset[str] = frozenset()
        self._next, self._trouble = -math.inf, ""
        self._identity: tuple[int, int, int] | None = None

    def changed(self, now: float) -> bool:
        """Check the file if it is time to; returns whether the names have changed."""
        if now < self._next:
            return False
        self._next = now + 1.0  # second
        identity, before = self._stat(), self.names
        if identity == self._identity:
            return False
        try:
            self.names, self._trouble = read_names(self.path), ""
            self._identity = identity
        except UnreadableFile as error:
            if str(error) != self._trouble:
                _log.error("%s; keeping the previous names", error)
            self._trouble = str(error)
        return self.names != before

    @property
    def is_read(self) -> bool:
        """Whether the names are those in the file."""
        return not self._trouble

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
