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
from dataclasses import replace
from pathlib import Path

from clusterctl.root_access import name_of
from clusterctl.root_helper import PATH, RootHelper
from clusterctl.runner import LIMIT_S, Ended, LocalRunner
from tests.fleet import fakelaunchd
from tests.integration.cluster import wait_for

AS_A_MAC = """
import os
os.geteuid = lambda: 501
import clusterctl.launchd_cluster, clusterctl.root_access, clusterctl.root_helper
clusterctl.root_helper.DAEMONS = mac / "LaunchDaemons"
clusterctl.root_helper.HELPERS = mac / "Helpers"
clusterctl.root_helper.SUDOERS = mac / "sudoers.d"
clusterctl.root_helper.PATH = f"{mac}:/usr/bin:/bin:/usr/sbin:/sbin"
clusterctl.root_access.owner_of = lambda home: "nobody"
clusterctl.launchd_cluster.THROTTLE_S = dict.fromkeys(clusterctl.launchd_cluster.THROTTLE_S, 1)
"""
"""Has clusterctl take this machine for the Mac in the folder `mac`, and its user for one who is not root."""
ON_A_MAC = f"""
import sys
from pathlib import Path
mac = Path(sys.argv.pop(1))
{AS_A_MAC}
import clusterctl.cli
clusterctl.cli.main()
"""
"""Runs clusterctl on the Mac of the folder that is its first argument."""
SUDO = """#!/bin/sh
asks=$(dirname "$0")/password
while :; do
    case $1 in
        -n) shift; asks=/nowhere ;;
        -p) shift 2 ;;
        *) break ;;
    esac
done
if [ -e "$asks" ]; then
    read -r word 2>/dev/null </dev/tty
    [ "$word" = "$(cat "$asks")" ] || { echo 'a password is required' >&2; exit 1; }
fi
BY_SUDO=yes exec "$@"
"""
"""Asks at the terminal for what is in the file `password`, if there is one."""
PLUTIL = """#!/bin/sh
[ "$1" = -lint ] && [ "$(tail -n 1 "$3")" = '</plist>' ]
"""
VISUDO = """#!/bin/sh
exec grep -q '^nobody ALL=(root) NOPASSWD: NOSETENV: /' "$2"
"""


class Mac(LocalRunner):
    """Runs programs on it. `calls` are the command lines that launchctl was given.

    Its services are nobody's, and run as the user of the tests, who may read the interpreter.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.helper = RootHelper(
            name="studiofleet",
            user="nobody",
            home=folder,
            programs=Path(sys.executable).parent,
            daemons=folder / "LaunchDaemons",
            helpers=folder / "Helpers",
            sudoers_folder=folder / "sudoers.d",
            search=f"{folder}:{PATH}",
        )
        Path(self.helper.daemons).mkdir()
        self.helper_of = lambda home: replace(self.helper, name=name_of(home), home=home.path)
        self.environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        source = f"#!{sys.executable} -IS\n" + Path(fakelaunchd.__file__).read_text()
        programs = {"launchctl": source, "plutil": PLUTIL, "sudo": SUDO, "visudo": VISUDO}
        for name, text in programs.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        (folder / "one_user").touch()

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", limit_s: float = LIMIT_S) -> Ended:
        if argv[0] == "launchctl":  # without a Python of its own, which takes longer than all the rest
            return Ended(*fakelaunchd.ask(self.folder, list(argv[1:])))
        if list(argv[:2]) == [str(self.helper.path), "print"]:
            return Ended(*fakelaunchd.ask(self.folder, ["print", f"system/{argv[2]}"]))
        return super().run(["env", f"PATH={self.environ['PATH']}", *argv], stdin=stdin, limit_s=limit_s)

    def put_helper(self) -> None:
        """As if it had been installed before."""
        program = Path(self.helper.path)
        program.parent.mkdir()
        program.write_text(self.helper.text)
        program.chmod(0o755)

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
