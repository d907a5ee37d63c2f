"""A picture as a request has it, and as it goes to a worker."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from gateway.media.pictures import Facts
from protocol.errors import ClusterError


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A picture as a request has it: an address, a data URL, or base64."""

    path: str
    """Of the field that has it."""
    url: str = ""
    base64: str = ""
    refusal: ClusterError | None = None
    """What is said where the model cannot see; None: words stand in its place then."""

    @property
    def size(self) -> int:
        return len(self.url) + len(self.base64)


@dataclass(frozen=True)
class Taken:
    """A picture as it goes to a worker."""

    facts: Facts
    data: bytes

    def __str__(self) -> str:
        """What a log may tell."""
        size = f"{self.facts.width} x {self.facts.height} pixels"
        return f"{self.facts.media_type} of {size} and {len(self.data)} bytes"
