"""Why a picture is not taken."""

from __future__ import annotations


class PictureError(Exception):
    """The cause in words that the client may read: never more of an address than its host.

    `reason` is the code by which OpenAI's clients know it.
    """

    def __init__(self, message: str, reason: str = "invalid_image_url") -> None:
        super().__init__(message)
        self.reason = reason


class NoConnectionError(PictureError):
    """Another address of the same host may do."""
