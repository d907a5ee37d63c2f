"""Small pictures for tests, seven by five pixels where nothing else is said."""

from __future__ import annotations

import base64
import struct
import zlib


def png(width: int = 7, height: int = 5, *, red: int = 200) -> bytes:
    """A whole one, of one colour."""
    rows = (b"\0" + bytes([red, 30, 40]) * width) * height
    return png_head(width, height) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")


def png_head(width: int, height: int) -> bytes:
    """The beginning of one: small itself, whatever it says of its size."""
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", size)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def jpeg_head(width: int, height: int, *, before: bytes = b"", frame: int = 0xC0) -> bytes:
    size = struct.pack(">HBHHB", 8 + 3, 8, height, width, 1)
    return b"\xff\xd8" + before + bytes([0xFF, frame]) + size + b"\x01\x11\x00" + b"\xff\xda"


def gif_head(canvas: tuple[int, int], frame: tuple[int, int, int, int], *, before: bytes = b"") -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", *canvas, 0, 0, 0) + before + b"," + struct.pack("<4H", *frame)


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


JPEG = base64.b64decode(
    "/9j/7gAOQWRvYmUAZAAAAAAA/9sAQwBQNzxGPDJQRkFGWlVQX3jIgnhubnj1r7mRyP///////////////////////////////////////"
    "////////////8AAFAgABQAHBEMRAE0RAFkRAEsRAP/EAB8AAAEFAQEBAQEBAAAAAAAAAAABAgMEBQYHCAkKC//EALUQAAIBAwMCBAMFBQ"
    "QEAAABfQECAwAEEQUSITFBBhNRYQcicRQygZGhCCNCscEVUtHwJDNicoIJChYXGBkaJSYnKCkqNDU2Nzg5OkNERUZHSElKU1RVVldYWVp"
    "jZGVmZ2hpanN0dXZ3eHl6g4SFhoeIiYqSk5SVlpeYmZqio6Slpqeoqaqys7S1tre4ubrCw8TFxsfIycrS09TV1tfY2drh4uPk5ebn6Onq"
    "8fLz9PX29/j5+v/aAA4EQwBNAFkASwAAPwCeqtVqu1//2Q=="
)
"""In CMYK."""
JPEG_PROGRESSIVE = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAFA3PEY8MlBGQUZaVVBfeMiCeG5uePWvuZHI//////////////////////////////////////"
    "//////////////2wBDAVVaWnhpeOuCguv/////////////////////////////////////////////////////////////////////////w"
    "gARCAAFAAcDASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAAAAL/xAAVAQEBAAAAAAAAAAAAAAAAAAABA//aAAwDAQACEAMQAAABgFP"
    "/xAAUEAEAAAAAAAAAAAAAAAAAAAAA/9oACAEBAAEFAn//2Q=="
)
WEBP = base64.b64decode("UklGRjAAAABXRUJQVlA4ICQAAABwAQCdASoHAAUAB0CWJaACdAF1AAD+4uBIw1uv6u/O36ntgAA=")
WEBP_LOSSLESS = base64.b64decode("UklGRh4AAABXRUJQVlA4TBEAAAAvBgABAAdQjyIXpf+BiOh/AAA=")
WEBP_EXTENDED = base64.b64decode(
    "UklGRlYAAABXRUJQVlA4WAoAAAAIAAAABgAABAAAVlA4IC4AAACQAQCdASoHAAUAAUAmJaACdLoAA5gA/vFNr+LaR0KZD/7xn/9xn/9xn/"
    "yIAAAARVhJRgEAAAB4AA=="
)
GIF = base64.b64decode(
    "R0lGODdhBwAFAIIAAMwAAMwzAJkAM8wAM8wzMwAAAAAAAAAAACwAAAAABwAFAAAIGAAJDBBIkAAAAgEGJCQ4kOBBgwwJCCAYEAA7"
)
GIF_ANIMATED = base64.b64decode(
    "R0lGODlhBwAFAIEAAMgeKAAAAAAAAAAAACH/C05FVFNDQVBFMi4wAwEAAAAsAAAAAAcABQAACAwAAQgcSLCgwYMHAwIAIfkEAQAAAQAsA"
    "AAAAAcABQCBAQIDAAAAAAAAAAAACAwAAQgcSLCgwYMHAwIAOw=="
)
