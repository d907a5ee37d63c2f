"""Each rule of the audit finds its violation, and nothing where all is well."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripts.simulation.audit import Audit, Record
from scripts.simulation.traffic import Request


def record(number: int = 0, *, answer: int = 2) -> Record:
    found = Record(Request(number, at=0.0, gateway=0, prompt=10, answer=answer), f"r{number}")
    found.asked_at = 0.0
    return found


def served(audit: Audit, found: Record, *, at: float = 1.0) -> None:
    audit.came("gw", 0.0)
    audit.sent(found, "gw", "w", 0, at)
    audit.told(found, (0,))
    audit.told(found, (1,))
    audit.ended(found, "done", at + 1)


def taken_over(audit: Audit, resumed: int) -> None:
    found = record()
    audit.sent(found, "gw", "w", 0, 1.0)
    audit.told(found, (0,))
    audit.sent(found, "gw", "v", resumed, 2.0)


def retried(audit: Audit, times: int) -> None:
    for number in range(times):
        audit.came("gw", 0.0)
        found = record(number)
        audit.sent(found, "gw", "w", 0, 1.0)
        found.failed_at = 1.0
        audit.sent(found, "gw", "v", 0, 1.0)
    audit.check_budgets()


def sent_after_death(audit: Audit, seconds: float) -> None:
    audit.dies("w", 1.0)
    audit.sent(record(), "gw", "w", 0, 1.0 + seconds)


def in_order(audit: Audit, *numbers: int) -> None:
    for number in numbers:
        audit.sent(record(number), "gw", "w", 0, 1.0)


def passed(audit: Audit, *, seconds: float, key: str = "k") -> None:
    """The second leaves so long after the first came, and before it."""
    first = Record(Request(1, at=0.0, gateway=0, prompt=10, answer=2, key=key), "r1")
    first.asked_at = 0.0
    audit.sent(record(2), "gw", "w", 0, seconds)
    audit.sent(first, "gw", "w", 0, seconds + 1)


def told(audit: Audit, *ids: int) -> None:
    audit.told(record(), ids)


def back_again(audit: Audit) -> None:
    audit.dies("w", 1.0)
    audit.lives("w")
    audit.sent(record(), "gw", "w", 0, 60.0)


def broken(audit: Audit) -> None:
    audit.at_fault("w")
    audit.breaker_open("gw", "w")


def ended_twice(audit: Audit) -> None:
    found = record()
    served(audit, found)
    audit.ended(found, "overloaded", 3.0)


WELL: dict[str, Callable[[Audit], object]] = {
    "a whole life": lambda audit: served(audit, record()),
    "taken over": lambda audit: taken_over(audit, 1),
    "in order": lambda audit: in_order(audit, 1, 3),
    "passed while it waits for its own worker": lambda audit: passed(audit, seconds=4.9),
    "few retries": lambda audit: retried(audit, 30),
    "found dead": lambda audit: sent_after_death(audit, 10.0),
    "back again": back_again,
    "full": lambda audit: audit.holds("w", 9, 9),
    "a breaker of one at fault": broken,
    "drained": lambda audit: audit.drained("w", 0),
    "a full line": lambda audit: audit.queued("gw", 16, 16),
    "the truth": lambda audit: audit.sees("gw", "w", 0, 0),
}

WRONG: dict[str, tuple[Callable[[Audit], object], str]] = {
    "an end too many": (ended_twice, "ends 2 times"),
    "no end": (lambda audit: audit.unended([record()]), "never ends"),
    "a token lost": (lambda audit: told(audit, 1), "come after 0"),
    "a token twice": (lambda audit: told(audit, 0, 0), "come after 0"),
    "tokens in another order": (lambda audit: told(audit, 1, 0), "come after 0"),
    "an answer cut short": (lambda audit: served(audit, record(answer=3)), "has 2 of 3 tokens"),
    "begun anew after a token": (lambda audit: taken_over(audit, 0), "begins again at 0 of 1"),
    "a worker overfull": (lambda audit: audit.holds("w", 10, 9), "room for 9"),
    "retries without end": (lambda audit: retried(audit, 40), "retries 40 of 40"),
    "busy opens a breaker": (lambda audit: audit.breaker_open("gw", "w"), "only was busy"),
    "a dead worker asked": (lambda audit: sent_after_death(audit, 11.0), "which is dead"),
    "drained too soon": (lambda audit: audit.drained("w", 1), "exits with 1 requests"),
    "a view that stays wrong": (lambda audit: audit.sees("gw", "w", 1, 0), "sees 1 requests"),
    "a worker believed alive": (lambda audit: audit.sees("gw", "w", 0, None), "sees 0 requests"),
    "something left": (lambda audit: audit.at_rest("gw", "requests", 1), "left with 1 requests"),
    "another order": (lambda audit: in_order(audit, 3, 1), "after request 3"),
    "passed for too long": (lambda audit: passed(audit, seconds=5.1), "after request 2"),
    "passed though it has no own worker": (lambda audit: passed(audit, seconds=1, key=""), "after request 2"),
    "starved": (lambda audit: audit.sent(record(), "gw", "w", 0, 61.0), "waited 61.0 s"),
    "starved in line": (lambda audit: audit.ended(record(), "queue_timeout", 61.0), "waited 61.0 s"),
    "a line too long": (lambda audit: audit.queued("gw", 17, 16), "17 wait"),
}


@pytest.mark.parametrize("name", WELL)
def test_what_is_well_is_not_found_wrong(name):
    audit = Audit(60.0)
    WELL[name](audit)
    assert audit.violations == []


@pytest.mark.parametrize("name", WRONG)
def test_each_rule_can_be_broken(name):
    audit = Audit(60.0)
    act, expected = WRONG[name]
    act(audit)
    assert any(expected in violation for violation in audit.violations), audit.violations
