"""Every command block of the README, run in its order as a reader would."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.addresses import models_folder
from tests.mlx.tiny_encoders import BERT, MEAN, encoder_folder

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="mlx is not installed"),
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]


class Reader:
    """Runs blocks in a home of its own, on a port of the system's choice instead of 8000."""

    def __init__(self, home: Path) -> None:
        self.environ = {**os.environ, "STUDIOFLEET_HOME": str(home)}
        self.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.call("clusterctl", "init", "--http", "127.0.0.1:0", "--workers", "2")
        self._home = home

    def call(self, *command: str) -> str:
        result = subprocess.run(
            command, cwd=ROOT, env=self.environ, capture_output=True, text=True, timeout=400, check=False
        )
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def run(self, language: str, block: str) -> str:
        block = block.replace("/path/to/Qwen3-8B-4bit", str(self._model()))
        block = block.replace("/path/to/bge-small-en-v1.5", str(self._encoder()))
        if (url := self._home / "run" / "gw-1.url").exists():
            block = block.replace("http://127.0.0.1:8000", url.read_text().strip())
        if language == "python":
            return self.call(sys.executable, "-c", block)
        # The suite cannot call itself, and the tests' own environment is the demo's.
        kept = [line for line in block.splitlines() if not line.startswith(("./scripts/test", "source "))]
        return self.call("bash", "-euo", "pipefail", "-c", "\n".join(kept))

    def _encoder(self) -> Path:
        path = self._home.parent / f"{self._home.name}-encoder"
        return path if path.exists() else encoder_folder(path, BERT, MEAN)

    def _model(self) -> Path:
        return next(path for path in models_folder(self.environ).iterdir() if path.is_dir())


@pytest.fixture
def reader() -> Iterator[Reader]:
    folder = Path(tempfile.mkdtemp(prefix="sf-readme-"))
    reader = Reader(folder / "home")
    try:
        yield reader
    finally:
        reader.call("clusterctl", "down")
        shutil.rmtree(folder)


def test_every_block_of_the_readme_works(reader: Reader):
    output = [reader.run(language, block) for language, block in BLOCKS]
    answers = [text for text in output if "Paris" in text]
    assert len(answers) == 4, output  # the demo, the demo --once, Python, curl
