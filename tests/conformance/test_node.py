"""Clients of Node: OpenAI's own, and the Vercel AI SDK, over chat, responses and messages."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.conformance.scripts import TWO_CALLS
from tests.integration.cluster import Cluster, script

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent / "node"
CACHE = Path("~/.cache/studiofleet/node").expanduser()


def installed() -> Path:
    """The folder with the packages of package.json, made at first use and after each change of it."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not on this machine")
    wanted = (HERE / "package.json").read_bytes()
    folder = CACHE / hashlib.sha256(wanted).hexdigest()[:16]
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=CACHE))
        (fresh / "package.json").write_bytes(wanted)
        command = [npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run(command, cwd=fresh, check=True, timeout=400)
        fresh.rename(folder)
    return folder


def run(tmp_path: Path, suite: str, passed: int, **texts: str) -> None:
    """One file of tests, which find the texts in their environment."""
    (tmp_path / "node_modules").symlink_to(installed() / "node_modules")
    shutil.copy(HERE / suite, tmp_path)
    ran = subprocess.run(
        ["node", "--test", "--test-reporter=tap"],
        cwd=tmp_path,
        env=os.environ | texts | {"AI_SDK_LOG_WARNINGS": "false"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"# pass {passed}" in ran.stdout


@pytest.mark.timeout(480)
def test_clients_of_node(cluster: Cluster, tmp_path: Path):
    text = script(tokens=["Hello", " there."])
    run(tmp_path, "clients.test.mjs", 15, BASE_URL=cluster.url(), TEXT=text, TWO_CALLS=TWO_CALLS)
