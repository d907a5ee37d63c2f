"""Traces as values: where a request's trace stands, as W3C writes it (`traceparent`), and spans. Pure."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

TRACEPARENT = "traceparent"
"""The header's name, and the key in `Generate.trace_context`."""

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1

Value = str | int | float | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A span to which others belong."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 of them."""
    sampled: bool = True

    def beneath(self) -> Place:
        """A new span of the same trace."""
        return replace(self, span_id=new_span_id())

    @property
    def carried(self) -> dict[str, str]:
        """As it travels."""
        return {TRACEPARENT: f"00-{self.trace_id}-{self.span_id}-{_SAMPLED if self.sampled else 0:02x}"}


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time."""

    name: str
    place: Place
    parent_id: str
    """Empty: it is the first of its trace."""
    began: float
    ended: float
    """Both in seconds; in Unix time once it is sent."""
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str = ""
    """A code, where it failed."""
    kind: Literal["internal", "server", "client"] = "internal"

    def shifted(self, seconds: float) -> Span:
        """The same in another clock's time, which is later by so much."""
        return replace(self, began=self.began + seconds, ended=self.ended + seconds)


def read(traceparent: str) -> Place | None:
    """What a `traceparent` says; None where it is not one."""
    found = _FORM.fullmatch(traceparent.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return Place(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def begun(ratio: float) -> Place:
    """The first span of a new trace, of which that share is sampled."""
    trace_id = secrets.token_hex(16)
    # By the lower half, as OpenTelemetry does it: others who sample by the same ratio take the same traces.
    return Place(trace_id, new_span_id(), int(trace_id[16:], 16) < ratio * 2**64)


def within(context: Mapping[str, str], span_id: str) -> dict[str, str]:
    """What travels with that span's children, of what travelled so far."""
    place = read(context.get(TRACEPARENT, ""))
    return {} if place is None else replace(place, span_id=span_id).carried


def new_span_id() -> str:
    return secrets.token_hex(8)
