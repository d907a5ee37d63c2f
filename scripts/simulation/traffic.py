"""What clients ask, drawn ahead from a seed: every policy meets the same requests at the same times."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

TALK = "talk"
"""Keys of conversations begin like this."""
_TURN_TOKENS = 150
"""What a client adds to its conversation with each turn."""
_TURN_GAP_S = (4.0, 6.0)
"""Between two turns of a conversation: at least, and on average more."""
_LONGEST_ANSWER = 40
"""Times the median."""


@dataclass(frozen=True)
class Traffic:
    """How much is asked, and of what kind. Lengths are in tokens, log-normal about their medians."""

    per_s: float
    count: int = 1500
    answer: float = 32.0
    spread: float = 0.7
    """Of the logarithm of an answer's length; 1.6 is a heavy tail."""
    prompt: float = 60.0
    """What a prompt has of its own."""
    prefixes: int = 0
    """So many beginnings that prompts share, the k-th k^-0.9 times as often as the first."""
    prefix: int = 1000
    alike: float = 1.0
    """The share of the prompts that have one of them."""
    turns: int = 0
    """Conversations of so many turns instead: each begins with all that was said before."""
    leaving: float = 0.0
    """The share of clients that go away within a second."""

    @property
    def seconds(self) -> float:
        return self.count / self.per_s


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as its client means it."""

    number: int
    at: float
    gateway: int
    prompt: int
    answer: int
    key: str = ""
    """What it shares its beginning with; empty: nothing."""
    shared: int = 0
    """So many tokens of its prompt are that beginning."""
    returns: bool = False
    """That beginning came before."""
    leaves_at: float = math.inf

    @property
    def talk(self) -> str:
        """What only the turns of one conversation have in common."""
        return self.key if self.key.startswith(TALK) else str(self.number)


def draw(traffic: Traffic, gateways: int, seed: int) -> list[Request]:
    """All requests in the order of their arrival."""
    rng = random.Random(f"traffic {seed}")
    found = sorted(_conversations(traffic, rng) if traffic.turns else _single(traffic, rng))
    requests: list[Request] = []
    for number, (at, prompt, answer, key, shared, returns) in enumerate(found):
        leaves_at = at + rng.random() if rng.random() < traffic.leaving else math.inf
        gateway = rng.randrange(gateways)
        requests.append(Request(number, at, gateway, prompt, answer, key, shared, returns, leaves_at))
    return requests


_Drawn = tuple[float, int, int, str, int, bool]
"""At, prompt, answer, key, shared, returns."""


def _single(traffic: Traffic, rng: random.Random) -> Iterator[_Drawn]:
    weights = list(itertools.accumulate(rank**-0.9 for rank in range(1, traffic.prefixes + 1)))
    seen: set[str] = set()
    at = 0.0
    for _ in range(traffic.count):
        at += rng.expovariate(traffic.per_s)
        own, answer = _length(traffic.prompt, 0.5, rng), _length(traffic.answer, traffic.spread, rng)
        if not traffic.prefixes or (traffic.alike < 1 and rng.random() >= traffic.alike):
            yield at, own, answer, "", 0, False
            continue
        key = f"prefix {rng.choices(range(traffic.prefixes), cum_weights=weights)[0]}"
        yield at, traffic.prefix + own, answer, key, traffic.prefix, key in seen
        seen.add(key)


def _conversations(traffic: Traffic, rng: random.Random) -> Iterator[_Drawn]:
    least_s, more_s = _TURN_GAP_S
    for talk in range(traffic.count // traffic.turns):
        at = rng.uniform(0, traffic.seconds)
        said = 0
        for turn in range(traffic.turns):
            prompt = said + _TURN_TOKENS + _length(traffic.prompt, 0.5, rng)
            answer = _length(traffic.answer, traffic.spread, rng)
            yield at, prompt, answer, f"{TALK} {talk}", said, turn > 0
            said = prompt + answer
            at += least_s + rng.expovariate(1 / more_s)


def _length(median: float, spread: float, rng: random.Random) -> int:
    drawn = rng.lognormvariate(math.log(median), spread)
    return max(1, round(min(drawn, _LONGEST_ANSWER * median)))
