"""Macs that join over ssh: real sshds, doubles of launchd, and versions whose clusterctl believes in them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from clusterctl.wheelhouse import read_wheelhouse
from tests.fleet.installed import installed, prefix_of
from tests.fleet.mac import AS_A_MAC, ON_A_MAC, Mac, a_mac
from tests.fleet.sshd import Machine, machine
from tests.fleet.wheels import make_light_wheelhouse

IS_A_MAC = "import sys; 'clusterctl.cli' in sys.orig_argv and exec(open({0!r}).read())"
ON_THE_NODE = """\
if [ "$3" = clusterctl.cli ]; then
    shift 3
    export PATH={mac}:$PATH PYTHONPATH=$PYTHONPATH:{mac}
    exec {python} -P {mac}/on_a_mac.py {mac} "$@"
fi
"""
OF_THE_PREFIX = """
import os, sys
from pathlib import Path
mac = (Path(sys.prefix).parents[2] / "mac").resolve()
os.environ["PATH"] = f"{mac}:{os.environ['PATH']}"
"""


@dataclass(frozen=True)
class Studio:
    """A Mac that can be reached."""

    machine: Machine
    mac: Mac

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def prefix(self) -> Path:
        return prefix_of(self.machine)

    def add_words(self, wheels: Path) -> list[str]:
        """The command by which it joins."""
        words = {
            "--name": self.name,
            "--port": self.machine.port,
            "--identity": self.machine.identity,
            "--prefix": self.prefix,
            "--wheelhouse": wheels,
            "--fingerprint": self.machine.fingerprint,
            "--supervisor": "launchd",
        }
        return ["node", "add", "127.0.0.1", *(str(word) for pair in words.items() for word in pair)]

    def of_root(self) -> list[str]:
        """The files that only root could have put there."""
        helper = self.mac.helper
        folders = (helper.daemons, helper.helpers, helper.sudoers_folder)
        return sorted(path.name for folder in folders for path in Path(folder).glob("*"))


@contextmanager
def some_studios(names: Sequence[str]) -> Iterator[list[Studio]]:
    """On which nothing is installed."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder, ExitStack() as stack:
        found = []
        for name in names:
            it = stack.enter_context(machine(name, Path(folder) / name))
            mac = stack.enter_context(a_mac())
            (it.folder / "mac").symlink_to(mac.folder)
            found.append(Studio(it, mac))
        yield found


def maker_of_wheels(folder: Path) -> Callable[[str], Path]:
    """Makes the wheels of a version, of which each process runs a line of Python at its start."""
    (folder / "as_a_mac.py").write_text(OF_THE_PREFIX + AS_A_MAC)
    is_a_mac = IS_A_MAC.format(str(folder / "as_a_mac.py"))

    def make(line: str) -> Path:
        return make_light_wheelhouse(folder / str(len(list(folder.iterdir()))), is_a_mac, line)

    return make


@contextmanager
def installed_studio(name: str, wheels: Path) -> Iterator[Studio]:
    """On which this very checkout is installed, as the version of the wheels."""
    with a_mac() as mac, tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        (mac.folder / "on_a_mac.py").write_text(ON_A_MAC)
        more = ON_THE_NODE.format(mac=mac.folder, python=sys.executable)
        with installed(name, Path(folder) / name, read_wheelhouse(wheels).version, more) as it:
            yield Studio(it, mac)


def no_wheels(folder: Path) -> Path:
    """A wheelhouse of the version that an `installed_studio` has already, so that nothing is sent."""
    (folder / "studiofleet-0.0.0-py3-none-any.whl").touch()
    return folder
