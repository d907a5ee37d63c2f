"""A batch engine as a fluid: answers grow together, the more of them the slower, beside one prefill.

Not fitted to MLX: a batch of b makes `decode / (1 + b / 16)` tokens a second for each stream, and a
prefill takes half of the time of an engine that decodes.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scripts.simulation.clock import Clock

Key = tuple[str, str, int]
"""Gateway, request, attempt."""

_SLOWER = 16.0
_SHARE = 0.5
_NEARLY = 1e-6


@dataclass(frozen=True)
class Speed:
    """Tokens a second."""

    decode: float = 60.0
    """Of one stream alone."""
    prefill: float = 4000.0

    def times(self, factor: float) -> Speed:
        return Speed(self.decode * factor, self.prefill * factor)


@dataclass(eq=False, slots=True)
class Job:
    """One request at one worker."""

    key: Key
    answer: int
    """Tokens of the whole answer."""
    resumed: int = 0
    """So many of them another worker made."""
    left: float = math.nan
    """Prompt tokens that are still to be computed; not a number until its prompt is read."""
    ends: float = 0.0
    """On the batch's own scale of tokens; 0 until the prompt is computed."""
    gone: bool = False
    told: int = 0
    """So many tokens of the answer its gateway was told."""


class Engine:
    """Owns slots, batch and prefill. `entered` is told of one that got a slot, `begun` gives the tokens to
    compute for one whose prompt is the next to be read: then, as in ours, its cache is looked at."""

    def __init__(  # noqa: PLR0913
        self,
        clock: Clock,
        speed: Speed,
        slots: int,
        *,
        entered: Callable[[Job], None],
        begun: Callable[[Job], int],
        computed: Callable[[Job], None],
        done: Callable[[Job], None],
    ) -> None:
        self._clock = clock
        self._speed = speed
        self._slots = slots
        self._entered, self._begun, self._computed, self._done = entered, begun, computed, done
        self._waiting: deque[Job] = deque()
        self._prefilling: deque[Job] = deque()
        self._decoding: list[tuple[float, int, Job]] = []
        self._batch = 0
        self._made = 0.0
        """Tokens that a stream there from the beginning would have."""
        self._since = clock.now
        self._plan = itertools.count()
        self._planned = 0
        self._stands = False
        self._number = itertools.count()

    @property
    def pending(self) -> int:
        """Prompt tokens still to be computed of the one that is read."""
        self._advance()
        reads = self._prefilling and not math.isnan(self._prefilling[0].left)
        return int(self._prefilling[0].left) if reads else 0

    def add(self, job: Job) -> None:
        self._advance()
        self._waiting.append(job)
        self._fill()
        self._plan_next()

    def remove(self, job: Job) -> None:
        """Whatever its phase; harmless after its end."""
        if job.gone:
            return
        self._advance()
        job.gone = True
        if job in self._waiting:
            self._waiting.remove(job)
        elif job in self._prefilling:
            self._prefilling.remove(job)
        else:
            self._batch -= 1
        self._fill()
        self._plan_next()

    def stand_still(self) -> None:
        self._advance()
        self._stands = True
        self._plan_next()

    def go_on(self) -> None:
        self._advance()
        self._stands = False
        self._plan_next()

    def made(self, job: Job) -> int:
        """So many tokens the answer has."""
        if not job.ends:
            return job.resumed
        self._advance()
        return max(job.resumed, min(job.answer, job.answer - int(job.ends - self._made + 1 - _NEARLY)))

    def _rates(self) -> tuple[float, float]:
        """Tokens a second of each stream, and of the prefill."""
        if self._stands:
            return 0.0, 0.0
        decode = self._speed.decode / (1 + self._batch / _SLOWER)
        if not self._prefilling:
            return decode, 0.0
        return decode * _SHARE, self._speed.prefill * (_SHARE if self._batch else 1.0)

    def _advance(self) -> None:
        passed = self._clock.now - self._since
        if passed > 0:
            decode, prefill = self._rates()
            self._made += decode * passed
            if self._prefilling:
                self._prefilling[0].left -= prefill * passed
            self._since = self._clock.now

    def _fill(self) -> None:
        while self._waiting and self._batch + len(self._prefilling) < self._slots:
            job = self._waiting.popleft()
            self._entered(job)
            self._prefilling.append(job)
        if self._prefilling and math.isnan(self._prefilling[0].left):
            self._prefilling[0].left = self._begun(self._prefilling[0])

    def _plan_next(self) -> None:
        self._planned = next(self._plan)
        decode, prefill = self._rates()
        waits = []
        while self._decoding and self._decoding[0][2].gone:
            heapq.heappop(self._decoding)
        if self._decoding and decode:
            waits.append((self._decoding[0][0] - self._made) / decode)
        if self._prefilling and prefill:
            waits.append(self._prefilling[0].left / prefill)
        if waits:
            self._clock.at(self._clock.now + max(0.0, min(waits)), self._step, self._planned)

    def _step(self, planned: int) -> None:
        if planned != self._planned:
            return
        self._advance()
        if self._prefilling and self._prefilling[0].left <= _NEARLY:
            self._begin(self._prefilling.popleft())
        for job in self._finished():
            job.gone = True
            self._batch -= 1
            self._done(job)
        self._fill()
        self._plan_next()

    def _begin(self, job: Job) -> None:
        job.ends = self._made + max(1, job.answer - job.resumed)
        self._batch += 1
        heapq.heappush(self._decoding, (job.ends, next(self._number), job))
        self._computed(job)

    def _finished(self) -> Iterator[Job]:
        while self._decoding and (self._decoding[0][2].gone or self._decoding[0][0] <= self._made + _NEARLY):
            job = heapq.heappop(self._decoding)[2]
            if not job.gone:
                yield job


class PrefixCache:
    """The beginnings that a worker still knows: the least recently used go first."""

    def __init__(self, tokens: int) -> None:
        self._room = tokens
        self._known: OrderedDict[str, int] = OrderedDict()

    def find(self, key: str) -> int:
        """So many tokens of that beginning are known."""
        if key not in self._known:
            return 0
        self._known.move_to_end(key)
        return self._known[key]

    def keep(self, key: str, tokens: int) -> None:
        self._room += self._known.pop(key, 0) - tokens
        self._known[key] = tokens
        while self._room < 0 and self._known:
            self._room += self._known.popitem(last=False)[1]
