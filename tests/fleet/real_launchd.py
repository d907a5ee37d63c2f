"""A service of ours under the real launchd of a Mac, as root: what the double pretends, and its figures.

For the workflow of hosted Macs (.github/workflows/macos.yml); never run by us. It prints what it sees,
so that the double can be corrected.
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

from clusterctl.launchd import Launchd, system_domain
from clusterctl.runner import LocalRunner
from clusterctl.services import ServiceSpec

LABEL = "studiofleet.test.dummy"
PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("minds signals", flush=True)
while True:
    time.sleep(0.1)
"""
LIMIT_S = 60.0


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="sf-real-", dir="/tmp"))
    folder.chmod(0o755)
    launchd = Launchd(LocalRunner(), system_domain())
    spec = ServiceSpec(
        label=LABEL,
        argv=(sys.executable, "-ISc", PROGRAM),
        environ={"HOME": str(folder)},
        folder=folder,
        log=folder / "dummy.log",
        stop_s=45,
        throttle_s=1,
        user=pwd.getpwuid(os.getuid()).pw_name,  # others may not enter where a hosted interpreter lies
    )
    try:
        timed("install", lambda: launchd.install(spec))
        sys.stdout.write(LocalRunner().run(["launchctl", "print", f"system/{LABEL}"]).out)
        state = launchd.state(LABEL)
        sys.stdout.write(f"{state}\n")
        assert state.running
        assert (state.exit_timeout_s, state.spawn_type) == (45, "interactive")
        assert not launchd.install(spec), "installed twice it is not unchanged"

        log = folder / "dummy.log"
        until(lambda: "minds" in log.read_text(), "it to mind signals")
        os.kill(state.pid or 0, 9)
        until(lambda: launchd.state(LABEL).pid not in (None, state.pid), "another process after kill -9")
        sys.stdout.write(f"after kill -9: {launchd.state(LABEL)}\n")
        until(lambda: log.read_text().count("minds") == 2, "the new one to mind signals")

        LocalRunner().run(["launchctl", "kill", "SIGTERM", f"system/{LABEL}"])
        until(lambda: not launchd.state(LABEL).running, "the process to end")
        time.sleep(3)
        assert not launchd.state(LABEL).running, "a process that ended well was started again"
        timed("start", lambda: launchd.start(LABEL))
        timed("restart", lambda: launchd.restart(LABEL))

        LocalRunner().run(["launchctl", "disable", f"system/{LABEL}"])
        launchd.stop(LABEL)
        timed("start of a disabled one", lambda: launchd.start(LABEL))
        assert launchd.state(LABEL).running
    finally:
        timed("remove", lambda: launchd.remove(LABEL))
        shutil.rmtree(folder)
    assert not launchd.state(LABEL).loaded
    assert not Path(system_domain().file(LABEL)).exists()


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
