"""Whether a load goes on: judged by its progress, never by the time that it takes. Pure."""

from __future__ import annotations

Progress = tuple[float, str]
"""How much is done (0 to 1), and what is being done."""


class StallWatch:
    """Owns what was seen last, and since when."""

    def __init__(self, limit_s: float, now: float) -> None:
        self._limit_s = limit_s
        self._seen: Progress | None = None
        self._since = now

    def look(self, progress: Progress, now: float) -> str:
        """What is wrong, with the cure; empty while the load goes on."""
        if progress != self._seen:
            self._seen, self._since = progress, now
        if now - self._since < self._limit_s:
            return ""
        share, doing = progress
        what = f"{share:.0%} done, {doing}" if doing else f"{share:.0%} done"
        return (
            f"the load made no progress for {self._limit_s:g} s ({what}); check the disk or network that"
            " the model is read from, or allow more: load_stall_s of the worker"
        )
