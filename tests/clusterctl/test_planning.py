"""What a plan says of each difference, and that carrying it out leaves none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.desired import text_digest, wanted_here, wanted_there
from clusterctl.operations import RefusedError
from clusterctl.planning import Action, Blocked, Machine, Plan, Seen, Verb, Wanted, plan, plan_one
from clusterctl.supervision import Kind, Spec
from protocol.config import parse
from protocol.states import WorkerState

NAMES = ("local", "studio-2", "studio-3")
GATEWAY = Spec("gw", Kind.GATEWAY, 30.0, "g1")
WORKER = Spec("w", Kind.WORKER, 60.0, "w1")
LOCAL = Wanted("local", "t1", (GATEWAY, WORKER))
RUNS = Machine("local", "t1", (Seen("gw", "ready", "g1", kind=Kind.GATEWAY), Seen("w", "ready", "w1")))


def lines(found: Plan) -> list[str]:
    return [action.words for action in found.actions]


def with_worker(**changed: object) -> Machine:
    return replace(RUNS, processes=(RUNS.processes[0], replace(RUNS.processes[1], **changed)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (RUNS, []),
        (with_worker(digest=None), []),
        (with_worker(state="loading"), []),
        (with_worker(state="failed"), []),
        (with_worker(digest="w0"), ["restart w: its configuration has changed"]),
        (with_worker(state="stopped"), ["start w: it is stopped"]),
        (
            with_worker(state="parked", digest="w0", last_error="no such model"),
            ["start w: it is parked: no such model"],
        ),
        (replace(RUNS, told="t0"), ["tell: what it knows of the configuration is older"]),
        (
            replace(with_worker(digest="w0"), told="t0"),
            ["tell: what it knows of the configuration is older", "restart w: its configuration has changed"],
        ),
        (replace(RUNS, told=None), []),
        (replace(RUNS, processes=RUNS.processes[:1]), ["start w: it does not run"]),
        (
            replace(RUNS, processes=(*RUNS.processes, Seen("x", "ready", "x1"))),
            ["stop x: it is not configured there"],
        ),
        (
            Machine("local", supervised=False),
            ["start gw: it does not run", "start w: it does not run"],
        ),
        (
            replace(with_worker(digest="w0"), supervised=False, told=None),
            [
                "start gw: it runs, and nothing is there to start it again",
                "start w: it runs, and nothing is there to start it again",
                "restart w: its configuration has changed",
            ],
        ),
    ],
)
def test_each_difference_has_its_action(machine: Machine, expected: list[str]):
    assert lines(plan_one(LOCAL, machine)) == expected


def test_what_ends_comes_first_on_all_machines_and_gateways_before_workers():
    there = Wanted(
        "studio-2", "u1", (Spec("far", Kind.WORKER, 60.0, "f1"), Spec("x", Kind.WORKER, 60.0, "x1"))
    )
    found = {
        "local": Machine(
            "local", "t0", (Seen("gw", "ready", "g0", kind=Kind.GATEWAY), Seen("x", "ready", "x1"))
        ),
        "studio-2": Machine("studio-2", "u1", (Seen("far", "ready", "f0"), Seen("old", "ready", "o"))),
    }
    done = [(a.verb.word, a.node, a.id) for a in plan([LOCAL, there], found).actions]
    assert done == [
        ("stop", "local", "x"),
        ("stop", "studio-2", "old"),
        ("start", "local", "w"),
        ("start", "studio-2", "x"),
        ("restart", "local", "gw"),
        ("restart", "studio-2", "far"),
    ]


def test_a_machine_that_is_not_reached_blocks_its_own_actions_only():
    there = Wanted("studio-2", "u1", (Spec("far", Kind.WORKER, 60.0, "f1"),))
    away = Machine("studio-2", why_not="it does not answer", unreachable=True)
    found = plan([LOCAL, there], {"local": with_worker(digest="w0"), "studio-2": away})
    assert lines(found) == ["restart w: its configuration has changed"]
    assert found.blocked == (Blocked("studio-2", "it does not answer", unreachable=True),)
    assert not found.is_nothing


DIGESTS = st.sampled_from(["a", "b"])
IDS = st.sampled_from(["gw", "w1", "w2", "w3", "w4"])
SPECS = st.lists(st.builds(Spec, IDS, st.sampled_from(Kind), st.just(1.0), DIGESTS), unique_by=lambda s: s.id)
SEEN = st.lists(
    st.builds(Seen, IDS, st.sampled_from([state.value for state in WorkerState]), st.none() | DIGESTS),
    unique_by=lambda s: s.id,
)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Wanted], dict[str, Machine]]:
    wanted = [Wanted(name, draw(DIGESTS), tuple(draw(SPECS))) for name in NAMES]
    found = {
        name: Machine(
            name,
            draw(st.none() | DIGESTS),
            tuple(draw(SEEN)),
            supervised=draw(st.booleans()),
            why_not=draw(st.sampled_from(["", "", "it does not answer"])),
        )
        for name in NAMES
    }
    return wanted, found


def carried_out(machine: Machine, wanted: Wanted, action: Action) -> Machine:
    """What a machine is like afterwards, as the commands do it."""
    others = tuple(seen for seen in machine.processes if seen.id != action.id)
    spec = {spec.id: spec for spec in wanted.specs}.get(action.id)
    if action.verb is Verb.STOP:
        return replace(machine, processes=others, told=wanted.told)
    if action.verb is Verb.TELL:
        return replace(machine, told=wanted.told)
    assert spec is not None
    before = next((seen for seen in machine.processes if seen.id == action.id), None)
    adopted = action.verb is Verb.START and before is not None and not before.is_down
    digest = before.digest if adopted and before is not None else spec.digest
    now = Seen(action.id, WorkerState.READY, digest, kind=spec.kind)
    if action.verb is Verb.START:
        machine = replace(machine, told=wanted.told, supervised=True)
    return replace(machine, processes=(*others, now))


@given(clusters())
def test_carrying_out_a_plan_leaves_nothing_to_do(cluster: tuple[list[Wanted], dict[str, Machine]]):
    wanted, found = cluster
    first = plan(wanted, found)
    after = dict(found)
    by_name = {each.name: each for each in wanted}
    for action in first.actions:
        after[action.node] = carried_out(after[action.node], by_name[action.node], action)
    assert plan(wanted, after) == Plan((), first.blocked)
    for each in wanted:
        machine = after[each.name]
        if machine.why_not:
            assert machine == found[each.name]
            continue
        assert {seen.id for seen in machine.processes} == {spec.id for spec in each.specs}
        digests = {spec.id: spec.digest for spec in each.specs}
        assert all(seen.digest in (None, digests[seen.id]) for seen in machine.processes)
        assert not any(seen.is_down for seen in machine.processes)


@given(clusters(), st.sampled_from(NAMES))
def test_whether_one_machine_is_reached_changes_nothing_for_the_others(
    cluster: tuple[list[Wanted], dict[str, Machine]], name: str
):
    wanted, found = cluster
    lost = {**found, name: Machine(name, why_not="it does not answer", unreachable=True)}
    before = [action for action in plan(wanted, found).actions if action.node != name]
    assert list(plan(wanted, lost).actions) == before


CONFIG = """
version = 1
[gateway]
id = "gw"
http = "127.0.0.1:8000"
listen = ["ipc", "tcp://10.0.0.5:5555"]
[[nodes]]
name = "studio-2"
host = "studio-2.local"
[[workers]]
id = "here"
model = "m"
[[workers]]
id = "far"
model = "m"
node = "studio-2"
"""


def test_the_configuration_says_what_each_machine_runs():
    config = parse(CONFIG)
    assert [spec.id for spec in wanted_here(config).specs] == ["gw", "here"]
    there = wanted_there(config, "studio-2")
    assert [spec.id for spec in there.specs] == ["far"]
    further = parse(CONFIG + 'aliases = ["x"]\n')
    assert wanted_there(further, "studio-2").specs == there.specs
    assert wanted_there(further, "studio-2").told != there.told
    assert wanted_here(further).specs == wanted_here(config).specs
    assert wanted_here(further).told != wanted_here(config).told
    assert wanted_here(parse(CONFIG.replace("studio-2.local", "10.0.0.6"))) == wanted_here(config)


def test_a_machine_without_workers_is_told_nothing_and_needs_no_way_to_a_gateway():
    config = parse(CONFIG.replace(', "tcp://10.0.0.5:5555"', "").partition('[[workers]]\nid = "far"')[0])
    assert wanted_there(config, "studio-2") == Wanted("studio-2", "")
    assert text_digest("") == ""
    with pytest.raises(RefusedError, match="takes no workers of other machines"):
        wanted_there(parse(CONFIG.replace(', "tcp://10.0.0.5:5555"', "")), "studio-2")
