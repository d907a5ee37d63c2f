"""What a picture is, read from its first bytes: nothing is decoded, so a bomb is known before it goes off.

Formats: PNG (ISO/IEC 15948), JPEG (ITU-T T.81), WebP (RFC 9649), GIF89a. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from gateway.media.refusal import PictureError

HEAD = 16
"""So many bytes tell the kind."""
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
"""Markers without a segment."""


@dataclass(frozen=True)
class Facts:
    """Of one picture: its media type, and its size in pixels."""

    media_type: str
    width: int
    height: int


def kind_of(head: bytes | bytearray) -> str:
    """The media type of a picture that begins so. Raises `PictureError`."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    raise PictureError(
        "it is no picture that can be read: its bytes are neither PNG, JPEG, WebP nor GIF",
        "invalid_image_format" if head else "empty_image_file",
    )


def facts_of(data: bytes, max_pixels: int) -> Facts:
    """Raises `PictureError` for what is no picture, is damaged, or has too many pixels."""
    media_type = kind_of(data[:HEAD])
    try:
        width, height = _SIZES[media_type](data)
    except IndexError:
        width = height = 0
    if not (width and height):
        raise PictureError(f"it is a damaged {media_type}: its size is not in it", "image_parse_error")
    if width * height > max_pixels:
        raise PictureError(
            f"it has {width} x {height} pixels; at most {max_pixels} are taken: make it smaller",
            "image_too_large",
        )
    return Facts(media_type, width, height)


def _number(data: bytes, at: int, size: int, order: Literal["big", "little"] = "big") -> int:
    """Raises `IndexError` where the data ends before."""
    if at + size > len(data):
        raise IndexError
    return int.from_bytes(data[at : at + size], order)


def _png(data: bytes) -> tuple[int, int]:
    if data[8:16] != b"\x00\x00\x00\x0dIHDR":
        raise IndexError
    return _number(data, 16, 4), _number(data, 20, 4)


def _jpeg(data: bytes) -> tuple[int, int]:
    """From the head of its frame, behind any number of other segments."""
    at = 2
    while True:
        if data[at] != 0xFF:
            raise IndexError
        marker = data[at + 1]
        if marker == 0xFF:  # filling
            at += 1
        elif marker in _JPEG_ALONE:
            at += 2
        elif marker in _JPEG_FRAMES:
            return _number(data, at + 7, 2), _number(data, at + 5, 2)
        else:
            length = _number(data, at + 2, 2)
            if length < 2 or marker in (0xD9, 0xDA):  # the end, or a scan, before any frame
                raise IndexError
            at += 2 + length


def _gif(data: bytes) -> tuple[int, int]:
    """Of its canvas, made as large as its first frame where that reaches beyond."""
    width, height = _number(data, 6, 2, "little"), _number(data, 8, 2, "little")
    at = 13 + _table(data[10])
    while data[at] == 0x21:  # extensions: a kind, then blocks up to an empty one
        at += 2
        while data[at]:
            at += 1 + data[at]
        at += 1
    if data[at] != 0x2C:
        raise IndexError
    left, top, wide, high = (_number(data, at + 1 + 2 * i, 2, "little") for i in range(4))
    return max(width, left + wide), max(height, top + high)


def _table(flags: int) -> int:
    """Bytes of a table of colours."""
    return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0


def _webp(data: bytes) -> tuple[int, int]:
    match data[12:16]:
        case b"VP8X":
            return _number(data, 24, 3, "little") + 1, _number(data, 27, 3, "little") + 1
        case b"VP8L" if data[20] == 0x2F:
            bits = _number(data, 21, 4, "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 " if data[23:26] == b"\x9d\x01\x2a":
            return _number(data, 26, 2, "little") & 0x3FFF, _number(data, 28, 2, "little") & 0x3FFF
    raise IndexError


_SIZES: Mapping[str, Callable[[bytes], tuple[int, int]]] = {
    "image/png": _png,
    "image/jpeg": _jpeg,
    "image/gif": _gif,
    "image/webp": _webp,
}
