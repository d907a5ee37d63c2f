"""The texts that wait to be computed, of all requests together, and their results. Shared by two threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from worker.engine.padding import next_batch
from worker.engine.prefill import Rate

if TYPE_CHECKING:
    from worker.engine.encoder import Encoder, Numbers, Row

_LOOKED_AT = 4096
"""Of the texts that wait, so many are chosen from."""


@dataclass(eq=False)
class Job:
    """The texts of one request. What it found is the engine thread's until `done` is called."""

    rows: Sequence[Row]
    done: Callable[[Job, Exception | None], None]
    """Called on the engine thread, once."""
    found: dict[int, Numbers] = field(default_factory=dict)
    left: bool = False
    """Nobody waits for it any more."""

    @property
    def tokens(self) -> int:
        return sum(len(row.ids) for row in self.rows)


class Encoding:
    """Owns the texts that wait. Engine thread only, but for its figures."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._waiting: list[tuple[Job, int]] = []
        self.rate = Rate()
        self.last_step = time.monotonic()
        self.texts = 0
        """Computed so far."""
        self.batches = 0

    def add(self, job: Job) -> None:
        self._waiting += [(job, place) for place in range(len(job.rows))]

    def step(self) -> bool:
        """Compute one batch. Whether there is more."""
        self._waiting = [each for each in self._waiting if not each[0].left]
        if self._waiting:
            first = self._waiting[:_LOOKED_AT]
            places = next_batch([len(job.rows[place].ids) for job, place in first])
            taken = set(places)
            batch = [first[place] for place in places]
            self._waiting = [each for at, each in enumerate(self._waiting) if at not in taken]
            self._compute(batch)
        self.last_step = time.monotonic()
        return bool(self._waiting)

    def _compute(self, batch: Sequence[tuple[Job, int]]) -> None:
        rows = [job.rows[place] for job, place in batch]
        begun = time.monotonic()
        try:
            found = self._encoder.compute(rows)
        except Exception as error:  # noqa: BLE001 (it concerns these requests; the next batch may do well)
            for job in {job for job, _place in batch}:
                job.left = True
                job.done(job, error)
            return
        self.rate.measure(sum(len(row.ids) for row in rows), time.monotonic() - begun)
        self.texts += len(rows)
        self.batches += 1
        for (job, place), numbers in zip(batch, found, strict=True):
            job.found[place] = numbers
            if len(job.found) == len(job.rows):
                job.done(job, None)
