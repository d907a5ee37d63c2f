"""Services under a double of launchd that has the faults which others met. Not verified on a Mac."""

from __future__ import annotations

import os
import plistlib
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.launchd import Launchd
from clusterctl.launchd_verbs import Domain, HelperVerbs, SessionVerbs
from clusterctl.services import ServiceError, ServiceRefusedError, ServiceSpec
from tests.fleet import real_launchd
from tests.fleet.mac import Mac, a_mac
from tests.integration.cluster import wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0, reason="what acts for root has to be root"),
]

LABEL = "studiofleet.worker.smol-1"
ENDS_WELL = "import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); print('begun', flush=True);"
HANGS = "import signal; signal.signal(15, signal.SIG_IGN); print('begun', flush=True);"
WAIT = "import time\nwhile True: time.sleep(0.05)"


@pytest.fixture
def mac() -> Iterator[Mac]:
    with a_mac() as mac:
        mac.put_helper()
        yield mac


@pytest.fixture
def launchd(mac: Mac) -> Launchd:
    return Launchd(HelperVerbs(mac, mac.helper), pause=lambda seconds: time.sleep(seconds / 5))


def plist_of(mac: Mac) -> Path:
    return Path(mac.helper.daemons) / f"{LABEL}.plist"


def a_spec(mac: Mac, code: str = ENDS_WELL + WAIT, **changed: object) -> ServiceSpec:
    program = mac.folder / f"{hash(code)}.py"  # a list of ours has no text of several lines
    program.write_text(code)
    spec = ServiceSpec(
        label=LABEL,
        argv=(sys.executable, "-IS", str(program)),
        environ={"HOME": str(mac.folder)},
        folder=mac.folder,
        log=mac.folder / "smol-1.log",
        stop_s=45,
        throttle_s=1,
        user="nobody",
    )
    return replace(spec, **changed)  # type: ignore[arg-type]


def begun(mac: Mac, spec: ServiceSpec) -> None:
    """Its process has come so far that it minds signals as it was told to."""
    wait_for(lambda: "begun" in Path(spec.log).read_text(), "the process to begin")


def count(mac: Mac, verb: str) -> int:
    return sum(call.startswith(f"{verb} ") for call in mac.calls)


def test_it_is_installed_once_and_then_unchanged(mac, launchd):
    spec = a_spec(mac)
    assert launchd.install(spec)
    state = launchd.state(LABEL)
    assert (state.loaded, state.running, state.runs) == (True, True, 1)
    assert (state.exit_timeout_s, state.throttle_s, state.spawn_type) == (45, 1, "interactive")
    calls = len(mac.calls)
    assert not launchd.install(spec)
    assert [call.split()[0] for call in mac.calls[calls:]] == ["print"]
    assert launchd.state(LABEL).pid == state.pid


def test_another_spec_replaces_it_within_the_settle_window(mac, launchd):
    launchd.install(a_spec(mac))
    mac.fail(settle_s=1.5)
    pid = launchd.state(LABEL).pid
    assert launchd.install(a_spec(mac, stop_s=50))
    state = launchd.state(LABEL)
    assert (state.running, state.exit_timeout_s) == (True, 50)
    assert state.pid != pid
    assert count(mac, "bootstrap") > 2


@pytest.mark.parametrize("code", [5, 37])
def test_a_bootstrap_that_says_no_and_yet_began_is_no_failure(mac, launchd, code):
    mac.fail(began_but=code)
    assert launchd.install(a_spec(mac))
    assert launchd.state(LABEL).running
    assert count(mac, "bootstrap") == 1


@pytest.mark.parametrize("faults", [{}, {"bootout_code": 36}, {"bootout_waits": True}])
def test_stopped_means_that_it_has_ended_whatever_bootout_says(mac, launchd, faults):
    mac.fail(**faults)
    spec = a_spec(
        mac,
        "import signal, sys, time; signal.signal(15, lambda *_: (time.sleep(0.8), sys.exit(0)));"
        "print('begun', flush=True);" + WAIT,
    )
    launchd.install(spec)
    begun(mac, spec)
    pid = launchd.state(LABEL).pid
    assert launchd.stop(LABEL)
    assert not launchd.state(LABEL).loaded
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not launchd.stop(LABEL)


def test_a_disabled_job_is_enabled_and_the_override_goes_with_it(mac, launchd):
    mac.run(["launchctl", "disable", f"system/{LABEL}"])
    assert mac.run(["launchctl", "bootstrap", "system", "/nowhere"]).code == 5
    launchd.install(a_spec(mac))
    mac.run(["launchctl", "disable", f"system/{LABEL}"])
    launchd.stop(LABEL)
    assert mac.run(["launchctl", "bootstrap", "system", str(plist_of(mac))]).code == 119
    launchd.start(LABEL)
    assert launchd.state(LABEL).running
    mac.run(["launchctl", "disable", f"system/{LABEL}"])
    assert launchd.remove(LABEL)
    assert LABEL not in mac.run(["launchctl", "print-disabled", "system"]).out


def test_without_a_session_it_is_refused_in_words(mac):
    mac.fail(gui_session=False)
    agents = Launchd(SessionVerbs(mac, Domain("gui/501", mac.folder / "LaunchAgents")))
    with pytest.raises(ServiceRefusedError, match="Log in at the screen"):
        agents.install(a_spec(mac, user=""))
    assert not (mac.folder / "LaunchAgents").exists()


@pytest.mark.parametrize(
    "broken",
    [
        lambda folder: {"log": folder / "nowhere" / "at-all.log"},
        lambda folder: {"folder": folder / "nowhere"},
        lambda folder: {"argv": (f"{sys.executable}-of-old",)},
    ],
)
def test_what_cannot_be_started_is_named_and_nothing_is_left(mac, launchd, broken):
    with pytest.raises(ServiceError, match=r"cannot start .*78.*nothing is left of it"):
        launchd.install(replace(a_spec(mac), **broken(mac.folder)))
    assert not launchd.state(LABEL).loaded
    assert not plist_of(mac).exists()


def test_when_the_new_one_cannot_be_started_the_old_one_runs_again(mac, launchd):
    good = a_spec(mac)
    launchd.install(good)
    with pytest.raises(ServiceError, match="what was there before runs again"):
        launchd.install(a_spec(mac, folder=mac.folder / "nowhere"))
    assert launchd.state(LABEL).running
    assert not launchd.install(good)


def test_who_does_not_end_is_killed_after_its_time(mac, launchd):
    spec = a_spec(mac, HANGS + WAIT, stop_s=1)
    launchd.install(spec)
    begun(mac, spec)
    pid = launchd.state(LABEL).pid
    assert launchd.stop(LABEL)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_job_under_an_older_file_gets_the_time_of_the_new_one(mac, launchd):
    """launchd would kill it after one second; it is asked beforehand, and not booted out meanwhile."""
    slow = (
        "import signal, sys, time\n"
        "def end(*_):\n time.sleep(1.5)\n print('ended well', flush=True)\n sys.exit(0)\n"
        "signal.signal(15, end); print('begun', flush=True)\n" + WAIT
    )
    spec = a_spec(mac, slow, stop_s=1)
    launchd.install(spec)
    begun(mac, spec)
    launchd.install(replace(spec, stop_s=45))
    assert "ended well" in Path(spec.log).read_text()


def test_a_failure_is_started_again_and_a_success_is_not(mac, launchd):
    spec = a_spec(mac, "import sys; print('begun', flush=True); sys.exit(int(open('code').read()))")
    (mac.folder / "code").write_text("75")
    launchd.install(spec)
    wait_for(lambda: (launchd.state(LABEL).runs or 0) >= 2, "it to be started again")
    (mac.folder / "code").write_text("0")
    wait_for(lambda: launchd.state(LABEL).last_exit == 0, "it to end well")
    state = launchd.state(LABEL)
    assert (state.loaded, state.running, state.pid) == (True, False, None)
    launchd.start(LABEL)
    wait_for(lambda: launchd.state(LABEL).runs == (state.runs or 0) + 1, "it to be started on command")


def test_a_failing_job_is_started_no_faster_than_its_throttle(mac, launchd):
    before = time.monotonic()
    launchd.install(a_spec(mac, "import sys; sys.exit(1)"))
    wait_for(lambda: (launchd.state(LABEL).runs or 0) >= 3, "three runs")
    assert time.monotonic() - before >= 2


def test_a_killed_process_is_named_by_its_signal_and_comes_back(mac, launchd):
    launchd.install(a_spec(mac))
    os.kill(launchd.state(LABEL).pid or 0, signal.SIGKILL)
    wait_for(lambda: launchd.state(LABEL).runs == 2, "it to be started again")
    assert launchd.state(LABEL).last_signal == "SIGKILL"


def test_a_restart_is_another_process_and_nobody_is_kicked(mac, launchd):
    launchd.install(a_spec(mac))
    pid = launchd.state(LABEL).pid
    launchd.restart(LABEL)
    assert launchd.state(LABEL).pid not in (pid, None)
    assert not any("kickstart -k" in call for call in mac.calls)


def test_a_reload_is_a_hangup(mac, launchd):
    spec = a_spec(
        mac,
        "import signal; signal.signal(1, lambda *_: print('again', flush=True));"
        "print('begun', flush=True);" + WAIT,
    )
    launchd.install(spec)
    begun(mac, spec)
    launchd.reload(LABEL)
    wait_for(lambda: "again" in Path(spec.log).read_text(), "it to hear")


def test_the_file_is_roots_and_nobody_else_may_write_it(mac, launchd):
    old = os.umask(0)
    try:
        launchd.install(a_spec(mac))
    finally:
        os.umask(old)
    path = plist_of(mac)
    assert path.stat().st_mode & 0o777 == 0o644
    assert plistlib.loads(path.read_bytes())["Label"] == path.stem
    assert [other.name for other in path.parent.iterdir()] == [path.name]


def test_removed_nothing_is_left_and_again_it_is_unchanged(mac, launchd):
    launchd.install(a_spec(mac))
    assert launchd.remove(LABEL)
    assert not launchd.state(LABEL).loaded
    assert not list(Path(mac.helper.daemons).iterdir())
    assert not launchd.remove(LABEL)


def test_a_daemon_without_a_user_is_refused(mac, launchd):
    with pytest.raises(ServiceRefusedError, match="needs a user"):
        launchd.install(a_spec(mac, user=""))
    assert not mac.calls


def test_what_is_tried_on_hosted_macs_holds_on_the_double(mac):
    Path(mac.helper.path).unlink()
    real_launchd.run(mac, mac.helper)
