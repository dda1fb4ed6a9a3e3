"""Messages between agents: encoding, decoding and validation.

On the wire, a message is a MessagePack array of three: the format version, the number of its kind, and its content. It
contains no text and no labels. Types and ranges are checked by msgspec during decoding, shapes and finiteness before an
array is used. Nothing is unpickled.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from kernelmesh.errors import RefusedMessage
from kernelmesh.messages import tables
from kernelmesh.messages.news import BITS, NOBODY, Hello, ListPart, News, PackedSums, Rows, packed, unpacked
from kernelmesh.messages.tables import VERSION, Message, Points, SentFunction, Values, WireSize

__all__ = ["BITS", "NOBODY", "Hello", "ListPart", "Message", "News", "PackedSums", "Points", "Rows", "SentFunction"]
__all__ += ["Values", "WireSize", "decode", "encode", "packed", "unpacked", "wire_size"]

# The number of this kind on the wire; those of tables are smaller.
_NEWS = len(tables.KINDS)


class _Wire(Struct, array_like=True, forbid_unknown_fields=True):
    version: int
    kind: int
    news: News


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Wire)


def encode(message: Message) -> bytes:
    """Encode a message.

    >>> import numpy as np
    >>> decode(encode(Values(np.array([[1.0, 2.0]])))).values
    array([[1., 2.]])
    """
    if isinstance(message, News):
        return _encoder.encode(_Wire(VERSION, _NEWS, message))
    return tables.encode(message)


def decode(data: bytes, *, max_bytes: int = 1 << 26) -> Any:
    """Decode a message, or raise `RefusedMessage` with the reason; no array is created before everything has been checked."""
    # the array's length, the version and the kind take one byte each
    if data[2:3] != bytes([_NEWS]) or len(data) > max_bytes:
        return tables.decode(data, max_bytes=max_bytes)
    try:
        wire = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RefusedMessage(f"message: must be one of format {VERSION}", error) from None
    if wire.version != VERSION:
        raise RefusedMessage(f"message: format must be {VERSION}", wire.version)
    return wire.news


def wire_size(message: Message) -> WireSize:
    """The numbers and bytes of a message on the wire.

    >>> import numpy as np
    >>> message = Points(np.zeros((32, 2)))
    >>> wire_size(message) == WireSize(64, len(encode(message)))
    True
    """
    if not isinstance(message, News):
        return tables.wire_size(message)
    if not (message.sums or message.part or message.proposals):
        return WireSize(0, len(_encoder.encode(_Wire(VERSION, _NEWS, message))))
    bare, data = message.without_data()
    return WireSize(message.floats, len(encode(bare)) + sum(map(tables.added_bytes, map(len, data))))
