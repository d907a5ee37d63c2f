"""Messages to frames and back. The only module that knows MessagePack.

Frame 0 is the message, further frames are binary parts. Decoding gives a message, `Unknown`,
or raises `FrameError`: nothing else, whatever the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import msgspec

from protocol.messages import AnyMessage, Message, Unknown

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Of one frame; ZeroMQ drops the connection of a peer that sends more, so senders check too."""


class FrameError(ValueError):
    """The peer sent bytes that are not a message of ours."""


class _Tag(msgspec.Struct, frozen=True):
    """Just enough of a message to read its tag."""

    type: str


_KNOWN_TAGS = frozenset(str(cls.__struct_config__.tag) for cls in get_args(AnyMessage))
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)
_tag_decoder = msgspec.msgpack.Decoder(_Tag)


def encode(message: Message, parts: Sequence[bytes] = ()) -> list[bytes]:
    """The frames of a message. Raises `FrameError` when one is larger than may be sent, or cannot be."""
    try:
        frames = [_encoder.encode(message), *parts]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FrameError(f"a {type(message).__name__} cannot be encoded: {error}") from error
    for frame in frames:
        if len(frame) > MAX_MESSAGE_BYTES:
            raise FrameError(f"a frame of {len(frame)} bytes exceeds the limit of {MAX_MESSAGE_BYTES} bytes")
    return frames


def decode(frames: Sequence[bytes]) -> tuple[AnyMessage | Unknown, Sequence[bytes]]:
    """The message in frame 0, and the binary parts. Raises `FrameError`, and nothing else."""
    if not frames:
        raise FrameError("a message without frames")
    try:
        return _decoder.decode(frames[0]), frames[1:]
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        tag = _tag_of(frames[0])
        if tag is not None and tag not in _KNOWN_TAGS:
            return Unknown(tag=tag), frames[1:]
        raise FrameError(f"not a message: {error}") from error


def _tag_of(frame: bytes) -> str | None:
    try:
        return _tag_decoder.decode(frame).type
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
        return None
