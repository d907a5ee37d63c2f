"""The steps of adding a worker that launchd takes part in fail once. Not verified on a Mac.

Installation (13): `plutil` refuses the list, or it cannot be written. Start (14): launchd refuses the
service, or takes it and cannot start it. The same command is given again each time; at last it works.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl import journal
from protocol.wire_keys import read_allowed
from tests.fleet.operators import fleet_of
from tests.fleet.sshd import needs_sshd
from tests.fleet.studios import Studio, installed_studio, no_wheels
from tests.integration.operating import Operator

pytestmark = [
    pytest.mark.integration,
    needs_sshd,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="what acts for root has to be root"),
]

ADD = ("add-worker", "--host", "studio-2", "--model", "fake-model", "--engine", "fake")
UNDONE = "what was begun on studio-2 is undone: once that is put right, do the same again"


@dataclass(frozen=True)
class Fault:
    """What befalls a step."""

    step: str
    says: str
    program: str = ""
    """Of the Mac; it fails."""
    launchd: int = 0
    """The exit code with which launchd refuses."""
    no_log: bool = False
    """The worker's log cannot be written to."""


FAULTS = (
    Fault("13 list", "plutil does not take it", program="plutil"),
    Fault("13 file", "LaunchDaemons cannot be written to", program="mv"),
    Fault("14 refused", "Path had bad ownership/permissions; the file is ", launchd=122),
    Fault("14 not started", "the folder of its log is missing or closed to it", no_log=True),
)


@pytest.fixture(scope="module")
def operator() -> Iterator[Operator]:
    with fleet_of() as operator:
        yield operator


@pytest.fixture(scope="module")
def studio(operator: Operator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """It has a worker already."""
    wheels = no_wheels(tmp_path_factory.mktemp("wheels"))
    with installed_studio("studio-2", wheels) as studio:
        operator.run(*studio.add_words(wheels))
        operator.run(*ADD, "--id", "first", "--wait", limit_s=300)
        yield studio
        operator.run("remove-worker", "far-1", limit_s=300)
        operator.run("remove-worker", "first", limit_s=300)


@contextmanager
def befallen(studio: Studio, fault: Fault) -> Iterator[None]:
    folder, log = studio.mac.folder, studio.prefix / "log" / "far-1.log"
    program = folder / fault.program
    before = program.read_bytes() if program.is_file() else None
    if fault.program:
        program.write_text("#!/bin/sh\nexit 1\n")
        program.chmod(0o755)
    if fault.no_log:
        log.mkdir()
    studio.mac.fail(refuses=fault.launchd)
    yield
    studio.mac.fail()
    if fault.no_log:
        log.rmdir()
    if before is not None:
        program.write_bytes(before)
    elif fault.program:
        program.unlink()


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.step for fault in FAULTS])
def test_a_step_of_launchd_that_fails_leaves_nothing(operator: Operator, studio: Studio, fault: Fault):
    before, of_root, first = operator.home.config.read_text(), studio.of_root(), operator.worker("first")
    told = (studio.prefix / "etc" / "cluster.toml").read_text()
    with befallen(studio, fault):
        said = operator.run(*ADD, "--id", "far-1", code=4, limit_s=300)
    assert fault.says in said
    assert UNDONE in said
    assert studio.of_root() == of_root
    assert (studio.prefix / "etc" / "cluster.toml").read_text() == told
    assert not list(studio.prefix.glob("etc/keys/wire/far-1.*"))
    assert operator.home.config.read_text() == before
    assert "far-1" not in read_allowed(operator.home).keys
    assert journal.interrupted(operator.home) == []
    assert operator.worker("first")["pid"] == first["pid"]


def test_the_next_time_it_works(operator: Operator, studio: Studio):
    assert "far-1 is added" in operator.run(*ADD, "--id", "far-1", "--wait", limit_s=300)
    label = next(name for name in studio.of_root() if name.endswith(".worker.far-1.plist"))
    lists = [path.name for path in Path(studio.mac.helper.daemons).glob("*")]
    assert sorted(lists) == sorted([label, label.replace("far-1", "first")])
    assert json.loads(operator.run("node", "list", "--json"))[0]["name"] == "studio-2"
