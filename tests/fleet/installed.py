"""A machine on which this very checkout is installed, in a moment: no wheels, the same folders."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from clusterctl import node_side
from clusterctl.ssh import known_hosts
from tests.fleet.sshd import Machine, machine
from tests.integration.operating import Operator

VERSION = "0.0.0-checkout"
ROOT = Path(__file__).parents[2]
_PYTHON = """#!/bin/sh
for word in "$@"; do
    while [ -e {prefix}/hold ] && [ "$word" = "$(cat {prefix}/hold)" ]; do
        touch {prefix}/holding
        sleep 0.05
    done
done
export PYTHONPATH={root}:{root}/deploy OPENBLAS_NUM_THREADS=1
{more}exec {python} "$@"
"""
"""A command of whose words one stands in the file `hold` waits until that is gone."""


@contextlib.contextmanager
def installed(name: str, folder: Path, version: str = VERSION, more: str = "") -> Iterator[Machine]:
    """`more` are lines of sh that come before each Python there."""
    with machine(name, folder) as it:
        prefix = prefix_of(it)
        for each in node_side._FOLDERS:
            (prefix / each).mkdir(mode=0o700, parents=True)
        (prefix / "etc" / "studiofleet-node").touch()
        for link, target in node_side._LINKS:
            (prefix / "state" / link).symlink_to(target)
        python = prefix / "versions" / version / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(_PYTHON.format(prefix=prefix, root=ROOT, python=sys.executable, more=more))
        python.chmod(0o755)
        (prefix / "current").symlink_to(f"versions/{version}")
        try:
            yield it
        finally:
            environ = {**os.environ, "STUDIOFLEET_HOME": str(prefix / "state")}
            (prefix / "hold").unlink(missing_ok=True)
            current = prefix / "current" / "bin" / "python"  # an upgrade removes older versions
            if current.exists():
                command = [str(current), "-P", "-m", "clusterctl.cli", "down"]
                subprocess.run(command, env=environ, capture_output=True, timeout=100, check=False)


def put_version(it: Machine, version: str, *, code: str = "") -> None:
    """A version that tells its own name, as an environment without packages of its own.

    `code` is a line of Python, run at the start of each process of that version.
    """
    folder = prefix_of(it) / "versions" / version
    shutil.rmtree(folder, ignore_errors=True)
    packages = folder / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    for each in (folder / "bin", packages):
        each.mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\n")
    (folder / "bin" / "python").symlink_to(f"{sys.base_prefix}/bin/python3.{sys.version_info[1]}")
    paths = [ROOT, ROOT / "deploy", sysconfig.get_path("purelib")]
    (packages / "checkout.pth").write_text("\n".join([*map(str, paths), code, ""]))


def prefix_of(it: Machine) -> Path:
    return it.folder / "prefix"


def join(operator: Operator, *machines: Machine) -> None:
    """As `node add` would write it."""
    with operator.home.config.open("a") as file:
        for it in machines:
            words = {"name": it.name, "host": "127.0.0.1", "identity": it.identity, "prefix": prefix_of(it)}
            file.write(f"\n[[nodes]]\nport = {it.port}\n")
            file.writelines(f'{key} = "{value}"\n' for key, value in words.items())
    operator.home.keys.mkdir(mode=0o700, exist_ok=True)
    with known_hosts(operator.home).open("a") as file:
        file.writelines(f"{it.name} {it.host_key}\n" for it in machines)
    known_hosts(operator.home).chmod(0o600)
