"""What holds of each backend: launchd as a double, a real systemd where it runs, the built-in supervisor."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from clusterctl.launchd import Launchd
from clusterctl.launchd_verbs import HelperVerbs
from clusterctl.services import Backend, ServiceError, ServiceSpec
from clusterctl.systemd import Systemd
from protocol.addresses import Home
from tests.fleet.mac import a_mac
from tests.fleet.supervised import ID, Process
from tests.fleet.systemd import Linux, a_linux
from tests.integration.cluster import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

LABEL = "studiofleet.worker.smol-1"
WAITS = "import time\nwhile True: time.sleep(0.05)"
BEGUN = "print('begun', os.getpid(), flush=True)\n"
BEGINS = (
    "import os, signal, sys\nsignal.signal(15, lambda *_: sys.exit(0))\n"
    "signal.signal(1, globals().get('on_hangup', signal.SIG_IGN))\n" + BEGUN
)
STUBBORN = "import os, signal\nsignal.signal(15, signal.SIG_IGN)\n" + BEGUN + WAITS
TOLD = BEGINS + "code = open('code').read()\nif code: sys.exit(int(code))\n" + WAITS


@dataclass(frozen=True)
class Bed:
    """A backend, and where its files are."""

    backend: Backend
    folder: Path
    units: Path
    user: str

    def spec(self, code: str = BEGINS + WAITS, **changed: object) -> ServiceSpec:
        program = self.folder / f"{hash(code)}.py"  # a list of launchd's has no text of several lines
        program.write_text(code)
        spec = ServiceSpec(
            label=LABEL,
            argv=(sys.executable, "-IS", str(program)),
            environ={"HOME": str(self.folder)},
            folder=self.folder,
            log=self.folder / "smol-1.log",
            stop_s=45,
            throttle_s=1,
            user=self.user,
        )
        return replace(spec, **changed)  # type: ignore[arg-type]

    @property
    def pids(self) -> list[int]:
        """Of all that began, in their order."""
        log = self.folder / "smol-1.log"
        return [int(line.split()[1]) for line in log.read_text().splitlines()] if log.exists() else []

    def begun(self, times: int = 1) -> int:
        """It has begun so often, and minds signals as it was told to; its pid."""
        wait_for(lambda: len(self.pids) >= times, f"{times} starts")
        return self.pids[-1]

    def will_end_with(self, code: str) -> None:
        (self.folder / "code").write_text(code)


@contextmanager
def of_launchd(_request: pytest.FixtureRequest, _folder: Path) -> Iterator[Bed]:
    if os.geteuid() != 0:
        pytest.skip("what acts for root has to be root")
    with a_mac() as mac:
        mac.put_helper()
        launchd = Launchd(HelperVerbs(mac, mac.helper), pause=lambda seconds: time.sleep(seconds / 5))
        yield Bed(launchd, mac.folder, Path(mac.helper.daemons), mac.helper.user)


@contextmanager
def of_systemd(request: pytest.FixtureRequest, folder: Path) -> Iterator[Bed]:
    linux: Linux = request.getfixturevalue("linux")
    systemd = Systemd(linux, linux.manager)
    try:
        yield Bed(systemd, folder, Path(linux.manager.folder), "")
    finally:
        systemd.remove(LABEL)


@pytest.fixture(scope="module")
def linux() -> Iterator[Linux]:
    with a_linux() as linux:
        yield linux


@contextmanager
def of_process(_request: pytest.FixtureRequest, _folder: Path) -> Iterator[Bed]:
    with tempfile.TemporaryDirectory(prefix="sf-home-") as name:  # short: a socket is in it
        home = Home(Path(name).resolve())
        (home.path / f"{ID}.log").symlink_to(home.log(ID))
        process = Process(home)
        try:
            yield Bed(process, home.path, home.run, "")
        finally:
            process.remove(LABEL)


@pytest.fixture(params=[of_launchd, of_systemd, of_process], ids=["launchd", "systemd", "process"])
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bed]:
    with request.param(request, tmp_path) as bed:
        yield bed


@pytest.fixture(params=[of_launchd, of_systemd], ids=["launchd", "systemd"])
def trying(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bed]:
    """Those that undo what does not start at once; the built-in supervisor tries again, and parks it."""
    with request.param(request, tmp_path) as bed:
        yield bed


def test_installed_twice_it_runs_once_and_undisturbed(bed):
    assert bed.backend.install(bed.spec())
    pid = bed.begun()
    state = bed.backend.state(LABEL)
    assert (state.loaded, state.running, state.pid, state.runs) == (True, True, pid, 1)
    assert (state.exit_timeout_s, state.throttle_s) in ((45, 1), (None, None))
    assert not bed.backend.install(bed.spec())
    assert bed.backend.state(LABEL).pid == pid
    assert bed.pids == [pid]


def test_another_spec_replaces_it(bed):
    bed.backend.install(bed.spec())
    first = bed.begun()
    assert bed.backend.install(bed.spec(stop_s=50))
    second = bed.begun(2)
    assert second != first
    assert bed.backend.state(LABEL).exit_timeout_s in (50, None)
    assert bed.backend.state(LABEL).pid == second


def test_what_cannot_start_replaces_nothing(trying):
    trying.backend.install(trying.spec())
    trying.begun()
    with pytest.raises(ServiceError, match="what was there before runs again"):
        trying.backend.install(trying.spec(argv=(f"{sys.executable}-of-old",)))
    assert trying.backend.state(LABEL).pid == trying.begun(2)


def test_what_cannot_start_leaves_nothing(trying):
    with pytest.raises(ServiceError, match="nothing is left of it"):
        trying.backend.install(trying.spec(argv=(f"{sys.executable}-of-old",)))
    assert not trying.backend.state(LABEL).loaded


def test_stopped_it_has_ended_and_comes_back_on_command(bed):
    bed.backend.install(bed.spec())
    pid = bed.begun()
    assert bed.backend.stop(LABEL)
    assert not psutil.pid_exists(pid)
    assert not bed.backend.state(LABEL).running
    assert not bed.backend.stop(LABEL)
    bed.backend.start(LABEL)
    pid = bed.begun(2)
    bed.backend.start(LABEL)  # again: it goes on
    assert bed.backend.state(LABEL).pid == pid
    bed.backend.restart(LABEL)
    assert bed.begun(3) != pid
    bed.backend.stop(LABEL)
    assert bed.backend.install(bed.spec())
    assert bed.backend.state(LABEL).pid == bed.begun(4)


@pytest.mark.parametrize("code", ["75", "70"])
def test_it_is_started_again_when_it_asks_for_that_or_fails(bed, code):
    bed.will_end_with(code)
    bed.backend.install(bed.spec(TOLD))
    bed.begun(2)
    bed.will_end_with("")
    wait_for(lambda: bed.backend.state(LABEL).pid in bed.pids[-1:], "it to go on")
    assert (bed.backend.state(LABEL).runs or 0) >= 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_killed_it_is_started_again(bed, number):
    bed.backend.install(bed.spec())
    os.kill(bed.begun(), number)
    bed.begun(2)
    assert bed.backend.state(LABEL).runs == 2


def test_ended_well_it_stays_down_and_comes_back_on_command(bed):
    bed.will_end_with("75")
    bed.backend.install(bed.spec(TOLD))
    bed.begun()
    bed.will_end_with("0")
    wait_for(lambda: bed.backend.state(LABEL).last_exit == 0, "it to end well")
    starts = len(bed.pids)
    time.sleep(1.5)  # longer than its throttle
    assert len(bed.pids) == starts
    state = bed.backend.state(LABEL)
    assert (state.loaded, state.running, state.pid, state.last_signal) == (True, False, None, "")
    assert not bed.backend.install(bed.spec(TOLD))
    bed.will_end_with("")
    bed.backend.start(LABEL)
    assert bed.backend.state(LABEL).pid == bed.begun(starts + 1)


def test_one_that_does_not_end_is_killed_when_its_time_is_over(bed):
    bed.backend.install(bed.spec(STUBBORN, stop_s=1))
    pid = bed.begun()
    assert bed.backend.stop(LABEL)
    assert not psutil.pid_exists(pid)


def test_a_reload_is_a_hangup(bed):
    hears = "on_hangup = lambda *_: print('begun', 0, flush=True)\n"
    bed.backend.install(bed.spec(hears + BEGINS + WAITS))
    bed.begun()
    bed.backend.reload(LABEL)
    assert bed.begun(2) == 0


def test_its_words_and_its_environment_arrive_as_they_are(bed):
    strange = "\"b\" 'c' %d $HOME ${HOME} \\e\tf"
    if bed.backend.kind != "launchd":  # where root's program takes lines of ASCII only
        strange += "ä\ng"
    code = BEGINS + "open('got', 'w').write(sys.argv[1] + '|' + os.environ['LANG'])\n" + WAITS
    spec = bed.spec(code)
    environ = {**spec.environ, "LANG": strange}
    bed.backend.install(replace(spec, argv=(*spec.argv, strange), environ=environ))
    got = bed.folder / "got"
    wait_for(lambda: got.exists() and got.read_text() == f"{strange}|{strange}", "the words to arrive")


def test_removed_nothing_is_left_and_again_it_is_unchanged(bed):
    bed.backend.install(bed.spec())
    pid = bed.begun()
    assert bed.backend.remove(LABEL)
    assert not psutil.pid_exists(pid)
    assert not bed.backend.state(LABEL).loaded
    assert not [path for path in bed.units.rglob("*") if LABEL in path.name]
    assert not bed.backend.remove(LABEL)
