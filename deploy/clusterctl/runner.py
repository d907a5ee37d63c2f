"""Running a program to its end, on this machine or on another: argument list in, exit code and output out.

Whoever needs a fact of a machine (doctor, launchd, models, nodes) is given a `Runner`, so that the
same code looks at this machine, at another one over ssh, and at a recorded one in tests.
"""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

LIMIT_S = 60.0
"""Unless whoever runs a program says otherwise."""
NOT_FOUND = 127
"""The exit code of a shell whose program is not there."""


class RunnerTimeoutError(Exception):
    """A program did not end in time; it was ended."""


@dataclass(frozen=True)
class Ended:
    """What a program left."""

    code: int
    """Its exit code; below zero: the signal that ended it."""
    out: str = ""
    err: str = ""

    @property
    def words(self) -> str:
        """What it said of its failure, on one line."""
        said = (self.err.strip() or self.out.strip()).splitlines()
        return said[-1].strip() if said else f"exit code {self.code}"


class Runner(ABC):
    """A machine on which programs can be run."""

    name = ""
    """Of the machine, as the configuration has it."""

    @abstractmethod
    def run(self, argv: Sequence[str], *, stdin: bytes = b"", limit_s: float = LIMIT_S) -> Ended:
        """Run it without a shell. A program that is not there ends with `NOT_FOUND`.

        Raises `RunnerTimeoutError` when it does not end within `limit_s` seconds.
        """

    def command(self, argv: Sequence[str]) -> list[str]:
        """The program of this machine that runs `argv` there: for whoever feeds it a stream."""
        raise NotImplementedError(f"nothing can be streamed to {self.name}")


class LocalRunner(Runner):
    """This machine."""

    name = "local"

    def command(self, argv: Sequence[str]) -> list[str]:
        return list(argv)

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", limit_s: float = LIMIT_S) -> Ended:
        try:
            ended = subprocess.run(list(argv), input=stdin, capture_output=True, timeout=limit_s, check=False)
        except (FileNotFoundError, PermissionError) as error:
            return Ended(NOT_FOUND, err=f"{argv[0]}: {error.strerror}")
        except subprocess.TimeoutExpired as error:
            raise RunnerTimeoutError(f"{' '.join(argv)} did not end within {limit_s:g} s") from error
        return Ended(
            ended.returncode, ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace")
        )
