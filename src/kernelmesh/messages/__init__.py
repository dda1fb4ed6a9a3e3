"""Messages between agents: encoding, decoding and validation.

On the wire, a message is a MessagePack array of three: the format version, the number of its kind, and its content. It
contains no text and no labels. Types and ranges are checked by msgspec during decoding, shapes and finiteness before an
array is used. Nothing is unpickled.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from kernelmesh.errors import RefusedMessage
from kernelmesh.messages import tables
from kernelmesh.messages.news import BITS, NOBODY, Hello, ListPart, News, PackedSums, Rows, packed, unpacked
from kernelmesh.messages.tables import VERSION, Message, Points, SentFunction, Values, WireSize

__all__ = ["BITS", "NOBODY", "Hello", "ListPart", "Message", "News", "PackedSums", "Points", "Rows", "SentFunction"]
__all__ += ["Values", "WireSize", "decode", "encode", "packed", "unpacked", "wire_size"]

_KINDS: tuple[type[Message], ...] = (Points, Values, SentFunction, News)  # numbered in this order on the wire
_NEWS = _KINDS.index(News)


class _Wire(Struct, array_like=True, forbid_unknown_fields=True):
    version: int
    kind: int
    content: msgspec.Raw


_encoder = msgspec.msgpack.Encoder()
_decoder, _news, _matrices = map(msgspec.msgpack.Decoder, (_Wire, News, Annotated[list[tables.Matrix], Meta(max_length=2)]))


def encode(message: Message) -> bytes:
    """Encode a message.

    >>> import numpy as np
    >>> decode(encode(Values(np.array([[1.0, 2.0]])))).values
    array([[1., 2.]])
    """
    content = message if isinstance(message, News) else tables.matrices(message)
    return _encoder.encode((VERSION, _KINDS.index(type(message)), content))


def decode(data: bytes, *, max_bytes: int = 1 << 26) -> Any:
    """Decode a message, or raise `RefusedMessage` with the reason; no array is created before everything has been checked."""
    if len(data) > max_bytes:
        raise RefusedMessage(f"message: must be at most {max_bytes} bytes", len(data))
    try:
        wire = _decoder.decode(data)
        if wire.version != VERSION:
            raise RefusedMessage(f"message: format must be {VERSION}", wire.version)
        if not 0 <= wire.kind < len(_KINDS):
            raise RefusedMessage(f"message: kind must be a number from 0 to {_NEWS}", wire.kind)
        if wire.kind == _NEWS:
            return _news.decode(wire.content)
        return tables.restored(_KINDS[wire.kind], _matrices.decode(wire.content))
    except (msgspec.DecodeError, RecursionError) as error:
        raise RefusedMessage(f"message: must be one of format {VERSION}", error) from None


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
        return WireSize(0, len(_encoder.encode((VERSION, _NEWS, message))))
    bare, data = message.without_data()
    return WireSize(message.floats, len(encode(bare)) + sum(map(tables.added_bytes, map(len, data))))
