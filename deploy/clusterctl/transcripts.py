"""A machine whose answers are kept, for a report; without what is nobody else's business."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.runner import LIMIT_S, Ended, Runner, RunnerTimeoutError
from protocol.api_keys import hide_keys

PATIENCE_S = 20.0
"""For a program that only tells something."""
TOO_LATE = 124
"""The exit code of one that did not end in time, as the program `timeout` has it."""
_ENVIRONMENTS = (
    re.compile(r"(?P<head>\t(?:inherited |default )?environment = \{).*?(?P<tail>\n\t\})", re.DOTALL),
    re.compile(r"(?P<head><key>EnvironmentVariables</key>\s*<dict>).*?(?P<tail></dict>)", re.DOTALL),
)


@dataclass(frozen=True)
class Call:
    """A program that was run, and what it left."""

    argv: tuple[str, ...]
    ended: Ended


class RecordingRunner(Runner):
    """Runs programs on another runner's machine; one that hangs is ended, and counts as one that failed."""

    def __init__(self, runner: Runner) -> None:
        self.name = runner.name
        self.calls: list[Call] = []
        self._runner = runner

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", limit_s: float = LIMIT_S) -> Ended:
        try:
            ended = self._runner.run(argv, stdin=stdin, limit_s=min(limit_s, PATIENCE_S))
        except RunnerTimeoutError as error:
            ended = Ended(TOO_LATE, err=str(error))
        self.calls.append(Call(tuple(argv), ended))
        return ended


class Censor:
    """Takes names of people and machines, environments and keys out of texts."""

    def __init__(self, folder: Path, user: str, host: str) -> None:
        self._names = {str(folder): "~"}
        self._words = {name: word for name, word in ((user, "USER"), (host, "HOST")) if len(name) > 1}

    def __call__(self, text: str) -> str:
        for pattern in _ENVIRONMENTS:
            text = pattern.sub(r"\g<head>…\g<tail>", text)
        for name, short in self._names.items():
            text = text.replace(name, short) if len(name) > 1 else text
        for name, word in self._words.items():
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", word, text)
        return hide_keys(text)
