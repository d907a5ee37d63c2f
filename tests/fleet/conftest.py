"""What the tests of a fleet share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from protocol.addresses import Home
from protocol.folders import leave_socket_folder, private_folder
from tests.fleet.installed import installed
from tests.fleet.sshd import Machine, machine


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Of whoever operates the fleet."""
    home = Home(tmp_path / "home")
    for folder in (home.path, home.run, home.keys, home.logs):
        private_folder(folder)
    yield home
    leave_socket_folder(home)


@pytest.fixture(scope="module")
def studios() -> Iterator[list[Machine]]:
    """Two machines on which this checkout is installed, for all tests of a module."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as name, ExitStack() as stack:
        yield [
            stack.enter_context(installed(studio, Path(name) / studio)) for studio in ("studio-2", "studio-3")
        ]


@pytest.fixture(scope="module")
def studio() -> Iterator[Machine]:
    """A machine that all tests of a module use."""
    with (
        tempfile.TemporaryDirectory(prefix="fleet-") as folder,
        machine("studio-1", Path(folder) / "1") as it,
    ):
        yield it
