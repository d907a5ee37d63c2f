"""A check and what it finds. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from clusterctl.facts import Facts


class Level(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """Something does not work, or soon will not."""
    WARNING = "warning"
    """It works, and will not survive what is to be expected: a night, a reboot, an update."""
    NOTE = "note"
    """It does no harm, and should be known."""


@dataclass(frozen=True)
class Fix:
    """What `--fix` may do by itself: nothing that ends a process, opens an access or loses data."""

    words: str
    argv: tuple[str, ...] = ()
    """A program to run on the machine; empty: remove what the process of `sweep` left behind."""
    sweep: str = ""


@dataclass(frozen=True)
class Found:
    """What one check has to say of one thing."""

    cause: str
    cure: str
    fix: Fix | None = None


@dataclass(frozen=True)
class Check:
    """One thing that is looked at. `judge` yields nothing where all is well, or nothing is known."""

    id: str
    level: Level
    about: str
    """What it looks for."""
    judge: Callable[[Facts], Iterable[Found]]
    fixes: bool = False
    """Whether it may bring a fix."""


@dataclass(frozen=True)
class Finding:
    """What is told to people and programs."""

    id: str
    level: Level
    cause: str
    cure: str
    fix: Fix | None = None


def diagnose(checks: Iterable[Check], facts: Facts) -> list[Finding]:
    """What all checks find, the worst first."""
    found = [
        Finding(check.id, check.level, it.cause, it.cure, it.fix)
        for check in checks
        for it in check.judge(facts)
    ]
    return sorted(found, key=lambda finding: list(Level).index(finding.level))
