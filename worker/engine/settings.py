"""What a request asks of the engine, checked once. Pure."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.engine.output import PromptError
from worker.engine.shape import SETTINGS, Shape, shape_of

_MASK = 2**64 - 1
_COIN = 0xD1B54A32D192ED03
_GREEDY_BELOW = 1e-5
"""As vLLM has it: a lower temperature is none."""
MOST_LOGPROBS = 20
_ADDRESSING = frozenset({"request_id", "attempt"})
_KNOWN = frozenset(
    {
        *("seed", "top_k", "min_p", "xtc_probability", "xtc_threshold", "logprobs", "logit_bias"),
        *("repetition_penalty", "repetition_context_size", "presence_penalty", "frequency_penalty"),
        *("min_tokens", "stop_token_ids", "ignore_eos", "echo", "resume_token_ids"),
    }
)


@dataclass(frozen=True)
class SamplingSettings:
    """How the tokens of one request are drawn. Names and meanings are vLLM's, and mlx-lm's for XTC.

    First the logits change: `logit_bias`, `min_tokens`, repetition, frequency and presence penalty.
    Of the log-probabilities then, `top_p`, `min_p`, XTC and `top_k` leave some, in mlx-lm's order,
    and `temperature` and the noise of (seed, position) choose among them.
    """

    temperature: float = 1.0
    """0 takes the likeliest."""
    top_p: float = 1.0
    top_k: int = 0
    """0 leaves all."""
    min_p: float = 0.0
    seed: int = 0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repetition_penalty: float = 1.0
    """Of tokens in prompt and answer, as in vLLM."""
    repetition_context_size: int = 0
    """Only the last so many of them count, as in mlx-lm; 0: all."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    """Both of tokens in the answer only."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    """Before so many, no stop token can come. Stop strings count all the same."""
    logprobs: int | None = None
    """How many alternatives to report with each token; None: no log-probabilities."""

    @property
    def greedy(self) -> bool:
        return self.temperature < _GREEDY_BELOW

    @property
    def penalizes(self) -> bool:
        """Whether earlier tokens change the logits."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    def adjusts(self, position: int) -> bool:
        """Whether the logits of that position are changed before the draw."""
        return self.penalizes or bool(self.logit_bias) or position < self.min_tokens

    @property
    def ever_adjusts(self) -> bool:
        """Whether the logits of some position are."""
        return self.adjusts(0)

    def filters(self, position: int) -> bool:
        """Whether some tokens are left out of the draw at that position."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0 or self.excludes_top(position)

    def excludes_top(self, position: int) -> bool:
        """XTC's coin, which is a function of seed and position too."""
        return self.xtc_probability > 0 and coin(self.seed, position) < self.xtc_probability


@dataclass(frozen=True)
class RequestSettings:
    """Everything about a request but its prompt."""

    sampling: SamplingSettings
    max_tokens: int
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    echo: bool = False
    """Give the prompt back before the answer, with its log-probabilities where these are asked for."""
    resume_token_ids: tuple[int, ...] = ()
    shape: Shape | None = None
    """What the answer has to be."""


def request_settings(
    max_tokens: int,
    temperature: float,
    top_p: float,
    stop: Sequence[str] | None,
    further: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> RequestSettings:
    """The settings of a call. Raises `PromptError` for a value out of range or a setting that is unknown."""
    unknown = sorted(name for name in further if name not in _KNOWN | _ADDRESSING | SETTINGS)
    if unknown:
        raise PromptError(f"this engine does not support the setting {', '.join(unknown)}", "settings")
    given = {name: value for name, value in further.items() if value is not None}
    echo = bool(given.get("echo", False))
    settings = RequestSettings(
        sampling=_sampling_settings(temperature, top_p, given),
        max_tokens=int(_in_range("max_tokens", max_tokens, 0 if echo else 1, math.inf)),
        stop=tuple(stop or ()),
        stop_token_ids=frozenset(given.get("stop_token_ids", ())),
        ignore_eos=bool(given.get("ignore_eos", False)),
        echo=echo,
        resume_token_ids=tuple(given.get("resume_token_ids", ())),
        shape=shape_of(given, tools),
    )
    if settings.sampling.min_tokens > settings.max_tokens:
        message = f"min_tokens is {settings.sampling.min_tokens}, more than max_tokens, {settings.max_tokens}"
        raise PromptError(message, "settings", param="min_tokens")
    return settings


def _sampling_settings(temperature: float, top_p: float, given: Mapping[str, Any]) -> SamplingSettings:
    def number(name: str, default: float, least: float, most: float = math.inf) -> float:
        return float(_in_range(name, given.get(name, default), least, most))

    seed = given.get("seed")
    penalty = number("repetition_penalty", 1.0, 0)
    if penalty == 0:
        raise PromptError("repetition_penalty must be above 0", "settings", param="repetition_penalty")
    logprobs = given.get("logprobs")
    return SamplingSettings(
        temperature=_in_range("temperature", temperature, 0, math.inf),
        top_p=_in_range("top_p", top_p, 0, 1),
        top_k=max(0, int(given.get("top_k", 0))),
        min_p=number("min_p", 0.0, 0, 1),
        seed=(secrets.randbits(63) if seed is None else int(seed)) & _MASK,
        xtc_probability=number("xtc_probability", 0.0, 0, 1),
        xtc_threshold=number("xtc_threshold", 0.1, 0, 0.5),
        repetition_penalty=penalty,
        repetition_context_size=int(number("repetition_context_size", 0, 0)),
        presence_penalty=number("presence_penalty", 0.0, -math.inf),
        frequency_penalty=number("frequency_penalty", 0.0, -math.inf),
        logit_bias=tuple(
            (int(token), float(_in_range("logit_bias", bias, -math.inf, math.inf)))
            for token, bias in given.get("logit_bias", {}).items()
        ),
        min_tokens=int(number("min_tokens", 0, 0)),
        logprobs=None if logprobs is None else int(_in_range("logprobs", logprobs, 0, MOST_LOGPROBS)),
    )


def _in_range(name: str, value: float, least: float, most: float) -> float:
    if not least <= value <= most or math.isinf(value):
        lower = "finite" if math.isinf(least) else f"at least {least:g}"
        upper = "" if math.isinf(most) else f" and at most {most:g}"
        raise PromptError(f"{name} must be {lower}{upper}, not {value}", "settings", param=name)
    return value


def noise_key(seed: int, position: int) -> int:
    """The 64-bit key of the noise at a position of a seeded answer."""
    return _splitmix64(_splitmix64(seed) ^ position)


def coin(seed: int, position: int) -> float:
    """A number from 0 to below 1, independent of the noise at that position."""
    return (_splitmix64(noise_key(seed, position) ^ _COIN) >> 11) / 2**53


def _splitmix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
