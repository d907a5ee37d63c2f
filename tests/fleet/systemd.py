"""A real systemd for the tests: the manager of a user, with folders of its own, that nobody else sees."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterctl.runner import LIMIT_S, Ended, LocalRunner
from clusterctl.systemd import Manager, user_manager
from tests.integration.cluster import wait_for

PROGRAM = Path("/usr/lib/systemd/systemd")
CGROUPS = Path("/sys/fs/cgroup")
START = """
set -e
mount -t tmpfs tmpfs /run/systemd 2>/dev/null || { mkdir -p /run/systemd; mount -t tmpfs tmpfs /run/systemd; }
mkdir /run/systemd/system
for folder in "$@"; do mkdir "$folder"; echo $$ > "$folder/cgroup.procs"; done
exec /usr/lib/systemd/systemd --user --log-target=console
"""


class Linux(LocalRunner):
    """Runs programs as its user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            "HOME": str(folder),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_DATA_HOME": str(folder / "data"),
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={folder}/run/bus",
        }

    @property
    def manager(self) -> Manager:
        return user_manager(self.folder / "config")

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", limit_s: float = LIMIT_S) -> Ended:
        settings = [f"{key}={value}" for key, value in self.environ.items()]
        return super().run(["env", *settings, *argv], stdin=stdin, limit_s=limit_s)

    def answers(self) -> bool:
        return self.run(["systemctl", "--user", "show-environment"]).code == 0


@contextmanager
def a_linux() -> Iterator[Linux]:
    """Skips the test where systemd cannot be started like this."""
    if sys.platform != "linux" or os.geteuid() != 0 or not PROGRAM.exists() or not shutil.which("unshare"):
        pytest.skip("only root of a Linux with systemd's programs can start one more of it")
    folder = Path(tempfile.mkdtemp(prefix="sf-linux-"))
    (folder / "run").mkdir(mode=0o700)
    linux = Linux(folder)
    roots = [CGROUPS, CGROUPS / "systemd", CGROUPS / "unified"]
    own = [root / folder.name for root in roots if (root / "cgroup.procs").exists()]
    with (folder / "log").open("wb") as log:
        systemd = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", START, "sh", *map(str, own)],
            env={**os.environ, **linux.environ},
            stdout=log,
            stderr=log,
        )
    try:
        with contextlib.suppress(AssertionError):
            wait_for(lambda: linux.answers() or systemd.poll() is not None, "systemd to answer")
        if not linux.answers():
            pytest.skip(f"systemd does not run here: {(folder / 'log').read_text()[-300:]}")
        yield linux
    finally:
        systemd.terminate()
        systemd.wait(timeout=60)
        for each in own:
            for path in sorted([*each.rglob("*/"), each], reverse=True):
                with contextlib.suppress(OSError):
                    path.rmdir()
        shutil.rmtree(folder)
