"""A service of ours under the real launchd of a Mac: what the double pretends, and its figures.

Needs a user whom sudo lets act as root without a password, as on hosted Macs. For the workflow of these
(.github/workflows/macos.yml); never run by us. It prints what it sees, so that the double can be corrected.
"""

from __future__ import annotations

import os
import pwd
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from clusterctl import root_access
from clusterctl.launchd import Launchd
from clusterctl.launchd_verbs import HelperVerbs
from clusterctl.root_helper import RootHelper
from clusterctl.runner import Ended, LocalRunner, Runner
from clusterctl.services import ServiceSpec

PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("minds signals", flush=True)
while True:
    time.sleep(0.1)
"""
LIMIT_S = 60.0


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="sf-real-", dir=Path.home()))
    try:
        helper = RootHelper(
            name="studiofleet-00000000",
            user=pwd.getpwuid(os.getuid()).pw_name,
            home=folder,
            programs=Path(sys.executable).parent,
        )
        run(LocalRunner(), helper)
    finally:
        shutil.rmtree(folder)


def run(runner: Runner, helper: RootHelper) -> None:
    def as_root(text: str) -> Ended:
        return runner.run(["sudo", "-n", "/bin/sh", "-c", text])

    timed("install the helper", lambda: root_access.install(runner, helper, as_root))
    assert not root_access.install(runner, helper, as_root), "installed twice it is not unchanged"
    try:
        live(runner, helper)
    finally:
        timed("uninstall the helper", lambda: root_access.uninstall(runner, helper))
    assert not root_access.is_there(runner, helper)


def live(runner: Runner, helper: RootHelper) -> None:
    folder, label = Path(helper.home), f"{helper.name}.worker.dummy"
    verbs = HelperVerbs(runner, helper)
    launchd = Launchd(verbs)
    program = folder / "dummy.py"
    program.write_text(PROGRAM)
    spec = ServiceSpec(
        label=label,
        argv=(sys.executable, "-IS", str(program)),
        environ={"HOME": str(folder)},
        folder=folder,
        log=folder / "dummy.log",
        stop_s=45,
        throttle_s=1,
        user=helper.user,
    )
    try:
        timed("install", lambda: launchd.install(spec))
        sys.stdout.write(verbs.do("print", label).out)
        state = launchd.state(label)
        sys.stdout.write(f"{state}\n")
        assert state.running
        assert (state.exit_timeout_s, state.spawn_type) == (45, "interactive")
        assert not launchd.install(spec), "installed twice it is not unchanged"

        log = folder / "dummy.log"
        until(lambda: "minds" in log.read_text(), "it to mind signals")
        os.kill(state.pid or 0, 9)
        until(lambda: launchd.state(label).pid not in (None, state.pid), "another process after kill -9")
        sys.stdout.write(f"after kill -9: {launchd.state(label)}\n")
        until(lambda: log.read_text().count("minds") == 2, "the new one to mind signals")

        verbs.do("terminate", label)
        until(lambda: not launchd.state(label).running, "the process to end")
        time.sleep(3)
        assert not launchd.state(label).running, "a process that ended well was started again"
        timed("start", lambda: launchd.start(label))
        timed("restart", lambda: launchd.restart(label))

        runner.run(["sudo", "-n", "launchctl", "disable", f"system/{label}"])
        launchd.stop(label)
        timed("start of a disabled one", lambda: launchd.start(label))
        assert launchd.state(label).running
    finally:
        timed("remove", lambda: launchd.remove(label))
    assert not launchd.state(label).loaded
    assert verbs.do("show", label).code != 0


def timed(what: str, act: Callable[[], object]) -> None:
    begun = time.monotonic()
    found = act()
    sys.stdout.write(f"{what}: {found} after {time.monotonic() - begun:.1f} s\n")


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.2)


if __name__ == "__main__":
    main()
