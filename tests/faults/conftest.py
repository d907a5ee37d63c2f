"""The home of somebody who starts for the first time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.addresses import Home
from tests.faults.newcomer import EMBEDDED


@pytest.fixture
def home() -> Iterator[Home]:
    """With a configuration of one worker on the embedded model."""
    folder = Path(tempfile.mkdtemp(prefix="sf-test-"))
    home = Home(folder / "home")
    home.path.mkdir(mode=0o700)
    home.config.write_text(EMBEDDED)
    yield home
    shutil.rmtree(folder)
