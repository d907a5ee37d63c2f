"""Pictures as models see them: upright, in three colours, still. Decoded by Pillow, within limits.

The size is read before anything is decoded, so that a small file which unfolds to a huge picture costs
nothing. Used on the preparation thread.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from typing import TYPE_CHECKING

from worker.engine.output import PromptError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_PIXELS = 50_000_000
"""Of one picture, width by height; decoded it takes three bytes each."""
LONGEST_SIDES = 200
"""A picture may be so many times as long as it is wide: models cut it into squares."""


def read_data_url(url: str, number: int) -> bytes:
    """The bytes of the picture of that number (from 1). Raises `PromptError`: nothing else is fetched."""
    head, comma, data = url.partition(",")
    if not (head.startswith("data:image/") and head.endswith(";base64") and comma):
        raise PromptError(
            f"picture {number} is not of the form data:image/TYPE;base64,DATA; the worker fetches nothing,"
            " and opens no files",
            "template",
        )
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PromptError(f"picture {number} is not valid base64: {error}", "template") from error


def named(data: bytes) -> str:
    """What may be said of a picture: never what it shows."""
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:16]}"


def decoded(data: bytes, number: int, max_pixels: int = MAX_PIXELS) -> Image:
    """The first frame of the picture of that number (from 1), turned as its EXIF says, on white where it is
    transparent. Raises `PromptError` for what is no picture, is damaged or has too many pixels."""
    from PIL import Image, ImageOps  # noqa: PLC0415 (a requirement of models that see)

    Image.MAX_IMAGE_PIXELS = None  # its limit is one for all programs, and warns before it refuses
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_size(image.width, image.height, number, max_pixels)
            image.load()
            return _on_white(ImageOps.exif_transpose(image))
    except PromptError:
        raise
    except Exception as error:  # whatever the decoders make of a damaged file
        raise PromptError(
            f"picture {number} ({named(data)}) cannot be read: it is damaged, or neither PNG, JPEG, WebP"
            " nor GIF",
            "template",
        ) from error


def _check_size(width: int, height: int, number: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise PromptError(
            f"picture {number} has {width} x {height} pixels; at most {max_pixels} are taken:"
            " make it smaller",
            "template",
        )
    if max(width, height) > LONGEST_SIDES * min(width, height):
        raise PromptError(
            f"picture {number} is {width} x {height}, more than {LONGEST_SIDES} times as long as wide:"
            " cut it",
            "template",
        )


def _on_white(image: Image) -> Image:
    from PIL import Image  # noqa: PLC0415

    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return image.convert("RGB")
    seen = image.convert("RGBA")
    ground = Image.new("RGB", seen.size, (255, 255, 255))
    ground.paste(seen, mask=seen.getchannel("A"))
    return ground
