"""Pictures that are in the request itself: base64, alone or in a data URL. Pure."""

from __future__ import annotations

import binascii
from collections.abc import Iterator

from gateway.media.refusal import PictureError

_SLICE = 256 * 1024
"""Characters decoded at one go, a multiple of four: whoever waits for the interpreter gets it in between."""


def payload(url: str) -> str:
    """The base64 in a data URL, whatever type it says to have. Raises `PictureError`."""
    head, comma, data = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise PictureError("its data URL is not of the form data:image/png;base64,…", "invalid_base64_image")
    return data


def decoded(text: str, max_bytes: int) -> bytes:
    """The bytes of base64 as RFC 4648 has it, without line feeds. Raises `PictureError`."""
    if len(text) // 4 * 3 - 2 > max_bytes:
        raise too_long(max_bytes)
    try:
        data = b"".join(_pieces(text))
    except ValueError:
        raise PictureError("it is not valid base64", "invalid_base64_image") from None
    if len(data) > max_bytes:
        raise too_long(max_bytes)
    return data


def too_long(max_bytes: int) -> PictureError:
    return PictureError(f"it has more than {max_bytes} bytes; make it smaller", "image_file_too_large")


def _pieces(text: str) -> Iterator[bytes]:
    for start in range(0, len(text), _SLICE):
        if text[start - 1 : start] == "=":
            raise ValueError
        yield binascii.a2b_base64(text[start : start + _SLICE], strict_mode=True)
