"""Imported before anything else, this makes a process speak as another minor version of the protocol would.

STUDIOFLEET_SPEAKS=later: each message, and what is in it, has fields that nobody knows yet. `earlier`: what
was added after the first release is missing, on the way out and on the way in.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec

from protocol import codec, messages

ADDED: dict[str, set[str]] = {
    "Hello": {"gateways"},
    "Heartbeat": {"cache_epoch", "resident_mb", "makes_room", "idle_s", "load_s", "step_age_s"},
    "Finished": {"timings", "matched_stop"},
    "Failed": {"param", "reason"},
    "Welcome": {"refused"},
    "Generate": {"cache_key", "priority", "trace_context", "parallel_tool_calls"},
    "card": {"model_path", "modalities"},
    "capacity": {"on_demand", "memory_mb", "memory_budget_mb"},
}
"""By message, or by the field in which a struct stands."""
FIRST_DELTA = 5
"""A delta's length in the first release; longer only where there is more to tell."""

_encode, _decode = codec.encode, codec.decode


def later(value: Any) -> Any:
    """With a field more in each struct, and an element more in each delta."""
    if not isinstance(value, dict):
        return value
    more = {key: later(item) for key, item in value.items() if key not in ("deltas", "sampling")}
    if "deltas" in value:
        more["deltas"] = [[*delta, {"of a later version": 1}] for delta in value["deltas"]]
    if "sampling" in value:
        more["sampling"] = value["sampling"]
    return {**more, "of_a_later_version": [1, {"two": 2}]}


def earlier(value: Any, name: str) -> Any:
    """Without what was added."""
    if not isinstance(value, dict):
        return value
    name = value.get("type", name)
    less = {key: earlier(item, key) for key, item in value.items() if key not in ADDED.get(name, ())}
    if "deltas" in less:
        less["deltas"] = [
            delta if any(delta[FIRST_DELTA:]) else delta[:FIRST_DELTA] for delta in less["deltas"]
        ]
    return less


def _other(frame: bytes) -> bytes:
    value = msgspec.msgpack.decode(frame)
    changed = later(value) if os.environ["STUDIOFLEET_SPEAKS"] == "later" else earlier(value, "")
    return msgspec.msgpack.encode(changed)


def encode(message: messages.Message, parts: Sequence[bytes] = ()) -> list[bytes]:
    first, *rest = _encode(message, parts)
    return [_other(first), *rest]


def decode(frames: Sequence[bytes]) -> tuple[messages.AnyMessage | messages.Unknown, Sequence[bytes]]:
    """An earlier version passes over what it does not know."""
    if os.environ["STUDIOFLEET_SPEAKS"] == "earlier":
        frames = [_other(frames[0]), *frames[1:]]
    return _decode(frames)


def begin() -> None:
    codec.__dict__.update(encode=encode, decode=decode)
    if os.environ["STUDIOFLEET_SPEAKS"] == "later":
        messages.__dict__["PROTOCOL_VERSION"] = (1, 99)
