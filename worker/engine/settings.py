"""What a request asks of the engine, checked once. Pure."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.engine.output import PromptError

_MASK = 2**64 - 1
_ADDRESSING = frozenset({"request_id", "attempt"})
_KNOWN = frozenset({"seed", "top_k", "min_p", "stop_token_ids", "ignore_eos", "resume_token_ids"})


@dataclass(frozen=True)
class SamplingSettings:
    """How the tokens of one request are drawn. Temperature 0 takes the likeliest."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int


@dataclass(frozen=True)
class RequestSettings:
    """Everything about a request but its prompt."""

    sampling: SamplingSettings
    max_tokens: int
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    resume_token_ids: tuple[int, ...] = ()


def request_settings(
    max_tokens: int,
    temperature: float,
    top_p: float,
    stop: Sequence[str] | None,
    further: Mapping[str, Any],
) -> RequestSettings:
    """The settings of a call. Raises `PromptError` for a value out of range or a setting that is unknown."""
    unknown = sorted(name for name in further if name not in _KNOWN | _ADDRESSING)
    if unknown:
        raise PromptError(f"this engine does not support the setting {', '.join(unknown)}", "settings")
    seed = further.get("seed")
    sampling = SamplingSettings(
        temperature=_in_range("temperature", temperature, 0, math.inf),
        top_p=_in_range("top_p", top_p, 0, 1),
        top_k=max(0, int(further.get("top_k") or 0)),
        min_p=_in_range("min_p", further.get("min_p") or 0.0, 0, 1),
        seed=(secrets.randbits(63) if seed is None else int(seed)) & _MASK,
    )
    return RequestSettings(
        sampling=sampling,
        max_tokens=int(_in_range("max_tokens", max_tokens, 1, math.inf)),
        stop=tuple(stop or ()),
        stop_token_ids=frozenset(further.get("stop_token_ids") or ()),
        ignore_eos=bool(further.get("ignore_eos", False)),
        resume_token_ids=tuple(further.get("resume_token_ids") or ()),
    )


def _in_range(name: str, value: float, least: float, most: float) -> float:
    if not least <= value <= most or math.isinf(value):
        upper = "" if math.isinf(most) else f" and at most {most:g}"
        raise PromptError(f"{name} must be at least {least:g}{upper}, not {value}", "settings")
    return value


def noise_key(seed: int, position: int) -> int:
    """The 64-bit key of the noise at a position of a seeded answer."""
    return _splitmix64(_splitmix64(seed) ^ position)


def _splitmix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
