"""A model on its way to another machine, through a real sshd."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from clusterctl.model_push import push
from clusterctl.model_store import folder_state
from clusterctl.ssh import SshRunner
from protocol.addresses import Home
from tests.clusterctl.test_model_commands import write_model
from tests.fleet.sshd import Machine, needs_sshd
from tests.fleet.test_ssh import pin
from tests.protocol.test_model_folder import safetensors

pytestmark = [pytest.mark.integration, needs_sshd, pytest.mark.timeout(300)]


def test_a_model_is_copied_and_goes_on_where_it_stopped(studio: Machine, home: Home, tmp_path: Path) -> None:
    source = write_model(tmp_path / "models" / "m")
    weights = safetensors(3_000_000)
    (source / "model.safetensors").write_bytes(weights)
    there = tmp_path / "its models with spaces" / "m"
    partial = there.with_name(".m.partial")
    partial.mkdir(parents=True)
    (partial / "model.safetensors").write_bytes(weights[:1_000_000])
    pin(home, studio)
    runner = SshRunner(studio.target, home)
    assert push(source, PurePosixPath(there), runner)
    assert (there / "model.safetensors").read_bytes() == weights
    assert folder_state(there) == ("verified", "")
    assert not push(source, PurePosixPath(there), runner)
    runner.close()
