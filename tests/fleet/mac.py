"""A Mac as far as `fakelaunchd` goes: its launchd runs, and its tools are found before all others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from clusterctl.launchd import Domain
from clusterctl.runner import LIMIT_S, Ended, LocalRunner
from tests.fleet import fakelaunchd
from tests.integration.cluster import wait_for


class Mac(LocalRunner):
    """Runs programs on it. `calls` are the command lines that launchctl was given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.domain = Domain("system", folder / "Library" / "LaunchDaemons")
        self.environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        source = f"#!{sys.executable} -IS\n" + Path(fakelaunchd.__file__).read_text()
        sudo = '#!/bin/sh\nBY_SUDO=yes exec "$@"\n'
        for name, text in (("launchctl", source), ("plutil", source), ("sudo", sudo)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", limit_s: float = LIMIT_S) -> Ended:
        if argv[0] == "launchctl":  # without a Python of its own, which takes longer than all the rest
            return Ended(*fakelaunchd.ask(self.folder, list(argv[1:])))
        return super().run(["env", f"PATH={self.environ['PATH']}", *argv], stdin=stdin, limit_s=limit_s)

    def fail(self, **faults: object) -> None:
        """From now on with exactly these faults."""
        (self.folder / "faults.json").write_text(json.dumps(faults))

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@contextmanager
def a_mac() -> Iterator[Mac]:
    folder = Path(tempfile.mkdtemp(prefix="sf-mac-"))  # short: a socket is in it
    mac = Mac(folder)
    launchd = subprocess.Popen([sys.executable, "-ISP", fakelaunchd.__file__, "serve", str(folder)])
    try:
        wait_for((folder / "socket").exists, "the double of launchd")
        yield mac
    finally:
        launchd.terminate()
        launchd.wait(timeout=30)
        shutil.rmtree(folder)
