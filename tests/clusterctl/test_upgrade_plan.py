"""What a node gets from one version to another with, and what the command says of it all."""

from __future__ import annotations

import pytest

from clusterctl.options import Exit
from clusterctl.upgrade_commands import exit_code
from clusterctl.upgrade_plan import Running, Station, Verb, actions_to, in_order, superfluous
from clusterctl.upgrading import Outcome, Result

OLD, NEW = "1-old", "1-new"


def node(current: str, *workers: Running, at_once: bool = False) -> Station:
    return Station("studio-2", current, (OLD, NEW), workers, at_once)


A, B = Running("a", OLD), Running("b", OLD)
NEW_A, NEW_B = Running("a", NEW), Running("b", NEW)


@pytest.mark.parametrize(
    ("station", "touched", "expected"),
    [
        (node(NEW, NEW_A, NEW_B), "", ""),
        (node(OLD), "", "switch"),
        (node(OLD, A, B), "", "drain a, switch, restart a, gate a, drain b, restart b, gate b"),
        (node(OLD, A, B, at_once=True), "", "drain a, drain b, switch, gate a, gate b"),
        # What was down before is not waited for.
        (node(OLD, A, Running("b", None)), "", "drain a, switch, restart a, gate a"),
        (node(OLD, Running("a", None)), "", "switch"),
        (node(NEW, Running("a", None)), "", ""),
        # Cut off: before the switch, after it, while one started, before its gate.
        (node(OLD, Running("a", OLD, draining=True)), "a", "drain a, switch, restart a, gate a"),
        (node(NEW, A, B), "a", "drain a, switch, restart a, gate a, drain b, restart b, gate b"),
        (node(NEW, Running("a", None), B), "a", "switch, restart a, gate a, drain b, restart b, gate b"),
        (node(NEW, NEW_A, B), "a", "gate a, drain b, switch, restart b, gate b"),
        (node(NEW, Running("a", None), at_once=True), "a", "switch, gate a"),
        # Whoever was drained by others stays so.
        (node(NEW, Running("a", NEW, draining=True)), "", ""),
        (node(NEW, Running("a", NEW, draining=True)), "a", "undrain a, gate a"),
    ],
)
def test_what_is_done_follows_from_what_is_there(station: Station, touched: str, expected: str):
    actions = actions_to(NEW, station, touched.split())
    assert ", ".join(f"{action.verb} {action.id}".strip() for action in actions) == expected


def test_the_version_before_stays_and_so_does_what_still_runs():
    versions = ("0-first", "0-second", OLD, NEW)
    station = Station("studio-2", NEW, versions, (NEW_A, Running("b", "0-second"), Running("c", None)))
    assert superfluous(station, was=OLD) == ["0-first"]


@pytest.mark.parametrize("at_once", [False, True])
def test_the_way_back_is_the_way_there_with_another_version(at_once: bool):
    there = actions_to(NEW, node(OLD, A, B, at_once=at_once))
    back = actions_to(OLD, node(NEW, NEW_A, NEW_B, at_once=at_once), ("a", "b"))
    assert [(action.verb, action.id) for action in there] == [(action.verb, action.id) for action in back]


def test_at_no_time_are_two_workers_of_a_node_away():
    away: set[str] = set()
    for action in actions_to(NEW, node(OLD, A, B)):
        if action.verb is Verb.DRAIN:
            assert not away
            away.add(action.id)
        if action.verb is Verb.GATE:
            away.remove(action.id)
    assert not away


def test_what_was_left_in_the_middle_comes_before_the_canary():
    stations = [Station(name, OLD, ()) for name in ("a", "b", "c", "d")]
    assert [s.name for s in in_order(stations, "c")] == ["c", "a", "b", "d"]
    assert [s.name for s in in_order(stations, "c", ["d"])] == ["d", "c", "a", "b"]


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ("", Exit.DONE),
        ("done done", Exit.DONE),
        ("rolled_back not_tried", Exit.ROLLED_BACK),
        ("done rolled_back", Exit.PARTLY),
        ("stuck not_tried", Exit.PARTLY),
        ("not_tried", Exit.FAILED),
    ],
)
def test_the_exit_code_tells_what_is_where(outcomes: str, expected: Exit):
    results = [Result("n", Outcome[name.upper()]) for name in outcomes.split()]
    assert exit_code(results) == expected


def test_the_exit_code_tells_that_nobody_answered():
    assert exit_code([Result("n", Outcome.NOT_TRIED, "away", unreachable=True)]) == Exit.UNREACHABLE
