"""Levels of load, one after the other, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import msgspec

from clusterctl.bench_client import Client, Connect, Question
from clusterctl.bench_figures import Level, level
from clusterctl.operations import RefusedError, Say
from clusterctl.transfers import shown
from protocol import __version__


@dataclass
class Benchmark:
    """Of one model at one gateway. A level ends after `limit_s` seconds, whatever is left of it."""

    connect: Connect
    question: Question
    limit_s: float
    levels: list[Level] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    """What the first failure of each kind said."""
    interrupted: bool = False

    def warm_up(self, prompt_tokens: int) -> None:
        """Have the model loaded, and learn how many words make so long a prompt. Raises `RefusedError`."""
        client = Client(self.connect, replace(self.question, max_tokens=2))
        sample = client.ask(self.limit_s)
        if sample.error:
            raise RefusedError(f"the first request failed: {sample.error}: {client.reasons[sample.error]}")
        words = round(self.question.words * prompt_tokens / max(1, sample.prompt_tokens))
        self.question = replace(self.question, words=max(1, words))

    def run(self, concurrency: Sequence[int], requests: int | None, say: Say) -> None:
        """Until Ctrl-C. Where the number of requests is not given, it suffices for figures."""
        client = Client(self.connect, self.question)
        self.reasons = client.reasons
        for at_once in concurrency:
            most = requests or max(8, 4 * at_once)
            say(f"{at_once} at once: {most} requests, in {self.limit_s:g} s at most")
            with shown(f"{at_once} at once", most, lambda: client.answered, str):
                samples, cut_short = client.level(at_once, most, self.limit_s)
            self.levels.append(level(at_once, samples, cut_short=cut_short))
            self.interrupted = client.interrupted
            if self.interrupted:
                return

    def document(self) -> str:
        """The figures as JSON, with what they are of."""
        document = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "version": __version__,
            "model": self.question.model,
            "max_tokens": self.question.max_tokens,
            "levels": self.levels,
            "reasons": self.reasons,
        }
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
