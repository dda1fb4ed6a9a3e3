"""Frames on the wire: a fixed-size prefix, a header, and the bytes of a message.

    token    8 bytes   random per process: distinguishes a restarted agent, or an impostor, from its predecessor
    kind     1 byte    0: a query, 1: a reply
    ticket   8 bytes   the same in a query and its reply
    the rest           MessagePack: the header's fields, then the message

Admission control reads only the prefix.
"""

import struct
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from kernelmesh.errors import RefusedMessage

__all__ = ["FRAME_BYTES", "PREFIX_BYTES", "Frame", "Header", "Prefix", "decode_frame", "encode_frame", "read_prefix"]

_PREFIX = struct.Struct(">Q?Q")
PREFIX_BYTES = _PREFIX.size
FRAME_BYTES = PREFIX_BYTES + 48
"""The size of a frame without its message, at most."""
_Count = Annotated[int, Meta(ge=0, lt=1 << 62)]  # so that counting on never leaves 64 bits


class Prefix(Struct, frozen=True):
    """The prefix of a frame."""

    token: int
    is_reply: bool
    ticket: int


class Header(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Metadata sent with a message and not counted as part of it."""

    step: _Count
    """The step that the sender is about to take."""
    model: Annotated[int, Meta(ge=0)] = 0
    """A fingerprint of the settings that both ends must share, such as the kernel; 0 if not given."""
    share: float = 0.0
    """1 / (1 + the sender's degree)."""
    age: float = 0.0
    """Seconds since any agent is known to have learned something."""
    ended: bool = False
    """Whether the sender's stream has ended."""
    ping: bool = False
    """Whether only the header of the other end is requested."""


class Frame(Struct, frozen=True):
    """A header with a message, which may be empty."""

    prefix: Prefix
    header: Header
    payload: bytes


class _Body(Struct, array_like=True, forbid_unknown_fields=True):
    header: Header
    payload: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Body)


def encode_frame(frame: Frame) -> bytes:
    """Encode a frame.

    >>> frame = Frame(Prefix(7, False, 1), Header(step=3, share=0.5, ended=True), b"words")
    >>> decode_frame(encode_frame(frame), max_bytes=100) == frame
    True
    """
    prefix = frame.prefix
    return _PREFIX.pack(prefix.token, prefix.is_reply, prefix.ticket) + _encoder.encode(_Body(frame.header, frame.payload))


def read_prefix(data: bytes) -> Prefix | None:
    """The prefix of a frame; None if these bytes cannot be one."""
    if len(data) <= PREFIX_BYTES or data[8] > 1:
        return None
    return Prefix(*_PREFIX.unpack_from(data))


def decode_frame(data: bytes, *, max_bytes: int) -> Frame:
    """Decode a frame, or raise `RefusedMessage`."""
    if len(data) > max_bytes:
        raise RefusedMessage(f"frame: must be at most {max_bytes} bytes", len(data))
    prefix = read_prefix(data)
    if prefix is None:
        raise RefusedMessage(f"frame: must begin with a prefix of {PREFIX_BYTES} bytes", f"{len(data)} bytes")
    try:
        body = _decoder.decode(memoryview(data)[PREFIX_BYTES:])
    except (msgspec.DecodeError, RecursionError) as error:
        raise RefusedMessage("frame: must be one of this version", error) from None
    header = body.header
    if not 0.0 <= header.share <= 1.0 or not header.age >= 0.0:
        raise RefusedMessage("frame: must have a share from 0 to 1 and an age >= 0", f"{header.share} and {header.age}")
    return Frame(prefix, header, body.payload)
