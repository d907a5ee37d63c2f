"""A machine that answers from a transcript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterctl.runner import LIMIT_S, Ended, Runner


class RecordedRunner(Runner):
    """Answers what is in the transcript; a program that is not in it fails the test."""

    def __init__(self, transcript: Mapping[tuple[str, ...], Ended], name: str = "studio-1") -> None:
        self.name = name
        self.asked: list[tuple[str, ...]] = []
        self._transcript = transcript

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", limit_s: float = LIMIT_S) -> Ended:
        self.asked.append(tuple(argv))
        return self._transcript[tuple(argv)]
