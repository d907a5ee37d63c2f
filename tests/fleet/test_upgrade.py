"""`clusterctl upgrade` of two machines, through real sshds and under load: there, back, and cut off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from clusterctl import journal
from clusterctl.wheelhouse import read_wheelhouse
from protocol import __version__
from protocol.keys import read_admin_key
from tests.faults.aftermath import total
from tests.fleet.installed import prefix_of, put_version
from tests.fleet.operators import fleet_of
from tests.fleet.sshd import Machine, free_port, needs_sshd
from tests.fleet.wheels import make_light_wheelhouse
from tests.integration.cluster import chat, script, wait_for
from tests.integration.load import Load
from tests.integration.operating import Operator

pytestmark = [pytest.mark.integration, needs_sshd, pytest.mark.timeout(600)]

PAGE = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()
DRY, UPGRADE = (line.split()[1:] for line in re.findall(r"^clusterctl upgrade .*$", PAGE, re.MULTILINE))
"""Of the page docs/fleet.md, typed by the first test."""
OLD, LATER, BAD = f"{__version__}-old", f"{__version__}-later", f"{__version__}-bad"
ENDS_AT_ONCE = 'import os, sys; "worker" in sys.orig_argv and os._exit(9)'
NODES = {"w-1": "studio-2", "w-2": "studio-2", "w-3": "studio-3"}
FAKE = ("--model", "fake-model", "--engine", "fake")


@pytest.fixture(scope="module")
def operator(studios: list[Machine]) -> Iterator[Operator]:
    for studio in studios:
        put_version(studio, OLD)
        put_version(studio, LATER)
        put_version(studio, BAD, code=ENDS_AT_ONCE)
        current = prefix_of(studio) / "current"
        current.unlink()
        current.symlink_to(f"versions/{OLD}")
    with fleet_of(*studios) as operator:
        for worker_id, node in NODES.items():
            operator.run("add-worker", *FAKE, "--id", worker_id, "--host", node, limit_s=240)
        for worker_id in NODES:
            operator.wait_state(worker_id, "ready")
        yield operator


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_light_wheelhouse(tmp_path_factory.mktemp("light") / "wheels")


def versions(operator: Operator) -> dict[str, str]:
    """Of the workers that serve."""
    return {w["id"]: w["version"] for w in operator.status()["workers"] if w["state"] == "ready"}


def used(studio: Machine) -> str:
    return (prefix_of(studio) / "current").readlink().name


@contextmanager
def held_up(operator: Operator, worker_id: str) -> Iterator[None]:
    """The worker has a request that does not end before the block does."""
    url, body = operator.url(), chat(script(tokens=["a"], repeat=100_000, delay_ms=50), max_tokens=100_000)
    headers = {"authorization": f"Bearer {read_admin_key(operator.home)}", "x-worker-id": worker_id}
    body["stream"] = True
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60) as answer:
        assert answer.status_code == 200
        assert answer.headers["x-worker-id"] == worker_id
        yield


def cut_off(operator: Operator, *command: str, step: str, draining: str = "") -> None:
    """Kill an upgrade in one of its steps, `draining`: once that worker is told to end."""

    def is_there() -> bool:
        at_it = not draining or operator.worker(draining).get("state") == "draining"
        return at_it and step_of(operator) == step

    process = operator.begin(*command)
    try:
        wait_for(is_there, f"it to come to {step}", patience_s=120)
    finally:
        process.kill()
        process.communicate()


def step_of(operator: Operator) -> str:
    """The step in which the newest operation is."""
    newest = max((operator.home.path / "state" / "ops").glob("*-upgrade.json"), default=None)
    entry = None if newest is None else msgspec.json.decode(newest.read_bytes(), type=journal.Entry)
    return entry.steps[-1].name if entry and entry.steps and not entry.steps[-1].done else ""


def test_two_machines_get_another_version_and_no_request_is_lost(
    operator: Operator, studios: list[Machine], wheels: Path
):
    new = read_wheelhouse(wheels).version
    dry, words = ([str(wheels) if word == "wheels" else word for word in line] for line in (DRY, UPGRADE))
    said = operator.run(*dry)
    assert said.splitlines()[:3] == [
        f"studio-3: {new} is installed",
        "studio-3: w-3 finishes what it has",
        f"studio-3: {new} is used from now on",
    ]
    assert versions(operator) == dict.fromkeys(NODES, OLD)
    with Load(operator.url, 4) as load:
        load.wait_for_answers(20)
        said = operator.run(*words, limit_s=300)
        load.wait_for_answers(20)
    assert load.outcomes.keys() == {"ok"}, load.outcomes
    assert total(operator.home, "studiofleet_takeovers_total") == 0  # each ended with nothing in hand
    assert said.endswith("studio-3: done\nstudio-2: done\n")
    assert re.findall(r"(w-\d) answers: ", said) == ["w-3", "w-1", "w-2"]
    assert versions(operator) == dict.fromkeys(NODES, new)
    assert [used(studio) for studio in studios] == [new, new]
    pids = operator.pids()
    for studio in studios:
        assert f"{studio.name}: removed what is not used any more: " in said
        left = {path.name for path in (prefix_of(studio) / "versions").iterdir()}
        assert left == {OLD, new}
        put_version(studio, LATER)
        put_version(studio, BAD, code=ENDS_AT_ONCE)
    assert operator.run(*words) == f"unchanged: all have {new}\n"
    assert operator.pids() == pids


def test_a_version_whose_workers_end_at_once_is_rolled_back_and_no_request_is_lost(
    operator: Operator, studios: list[Machine]
):
    before, was = versions(operator), used(studios[0])
    assert before.keys() == NODES.keys()
    with Load(operator.url, 4) as load:
        load.wait_for_answers(20)
        said = operator.run("upgrade", "--version", BAD, code=4, limit_s=300)
        load.wait_for_answers(20)
    assert load.outcomes.keys() == {"ok"}, load.outcomes
    assert f"studio-2: failed: w-1 does not come up: exit code 9; it is brought back to {was}" in said
    assert "\nstudio-2: rolled back: w-1 does not come up: " in said
    assert said.endswith("studio-3: not tried: since that went wrong with studio-2\n")
    assert versions(operator) == before
    assert [used(studio) for studio in studios] == [was, was]


def test_one_that_was_killed_is_undone_by_another_command_and_finished_by_the_same(
    operator: Operator, studios: list[Machine]
):
    before, was = versions(operator), used(studios[0])
    upgrade = ("upgrade", "studio-2", "--version", LATER, "--keep-versions")
    with held_up(operator, "w-1"):
        cut_off(operator, *upgrade, step="drain", draining="w-1")
        assert "was interrupted in the step 'drain'; to go on: clusterctl upgrade" in operator.run("plan")
        said = operator.run("remove-worker", "nobody")
        assert re.search(r"upgrade \(node studio-2, .*\) of .* in the step 'drain'; it is undone", said)
        assert versions(operator) == before
        cut_off(operator, *upgrade, step="drain")
    said = operator.run(*upgrade, limit_s=300)
    assert "was interrupted in the step 'drain'; it goes on" in said
    assert said.endswith("studio-2: done\n")
    assert versions(operator) == {"w-1": LATER, "w-2": LATER, "w-3": before["w-3"]}
    assert [used(studio) for studio in studios] == [LATER, was]
    assert journal.interrupted(operator.home) == []


def test_one_that_was_killed_amid_a_bad_version_is_undone(operator: Operator, studios: list[Machine]):
    before, was = versions(operator), used(studios[1])
    cut_off(operator, "upgrade", "studio-3", "--version", BAD, step="gate")
    assert used(studios[1]) == BAD
    said = operator.run("remove-worker", "nobody", limit_s=300)
    assert "in the step 'gate'; it is undone" in said
    assert used(studios[1]) == was
    assert versions(operator) == before


def test_with_one_machine_away_nothing_is_changed(operator: Operator, studios: list[Machine]):
    before = versions(operator)
    with operator.home.config.open("a") as file:
        file.write(f'\n[[nodes]]\nname = "studio-9"\nhost = "127.0.0.1"\nport = {free_port()}\n')
    said = operator.run("upgrade", "--version", LATER, code=6)
    assert "nothing was changed; to leave out studio-9, name the others" in said
    assert versions(operator) == before
    said = operator.run("upgrade", "studio-3", "--version", f"{__version__}-none", code=3)
    assert f"studio-3 has no version {__version__}-none; give its wheels: --wheelhouse" in said
