"""The page docs/operations.md as its reader would type it, on three Macs. Not verified on a Mac.

What stands in blocks behind the first one, tests/integration/test_operations.py runs.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.clusterctl.hub_double import hub_of
from tests.clusterctl.test_model_commands import CONFIG
from tests.fleet.operators import listen_to_others
from tests.fleet.sshd import needs_sshd
from tests.fleet.studios import Studio, maker_of_wheels, some_studios
from tests.integration.cluster import chat
from tests.integration.operating import Operator, operating
from tests.protocol.test_model_folder import safetensors

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
BLOCK = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0].splitlines()
PROSE = re.sub(r"^```.*?^```$", "", PAGE, flags=re.DOTALL | re.MULTILINE)
IN_PROSE = {" ".join(words.split()) for words in re.findall(r"`clusterctl ([^`]+)`", PROSE)}
MODEL = "mlx-community/Qwen3-8B-4bit"
SERVED = "Qwen3-8B-4bit"
FAKE = "--engine fake --wait"
TYPED = {
    "COMMAND --help": "status --help",
    "up": "up",
    "add-worker --model M --dry-run": f"add-worker --model {MODEL} --dry-run",
    "add-worker --model M --wait": f"add-worker --model {MODEL} {FAKE} --id near-1",
    f"add-worker --model {MODEL}": f"add-worker --model {MODEL} {FAKE} --id near-2",
    "add-worker --host studio-2 … --wait": f"add-worker --host studio-2 --model {MODEL} {FAKE} --id far-1",
    "model push MODEL studio-2": f"model push {MODEL} studio-2",
    "node run NAME doctor": "node run studio-3 doctor",
    "status": "status",
    "plan": "plan",
    "apply": "apply",
    "bench --model M": f"bench --model {SERVED} --concurrency 1 --requests 1 --max-tokens 4",
    "top": "top --count 1",
    "logs": "logs",
    "logs --request ID": "logs --request of-the-page",
    "explain ID": "explain of-the-page",
    "keys create NAME": "keys create alice",
    "drain ID": "drain near-1",
    "undrain ID": "undrain near-1",
    "restart ID": "restart near-1",
    "restart ID --wait": "restart near-2 --wait",
    "restart gw-1": "restart gw-1 --wait",
    "doctor": "doctor",
    "doctor --json": "doctor --json",
    "doctor --fix": "doctor --fix",
    "doctor --report > report.json": "doctor --report",
    "boot install": "boot install",
    "boot show --daemon": "boot show --daemon",
    "helper remove": "node run studio-3 helper remove",
    "down": "down",
}
"""What is typed for a command of the text, one after the other."""
GO_ON = {"logs ID -f": "logs near-1 -f", "up --foreground": "up --foreground"}
"""They go on until somebody ends them."""
PLACEHOLDERS = {"COMMAND", "ID", "M", "MODEL", "NAME", "…", ">", "report.json"}


@pytest.fixture
def studios() -> Iterator[list[Studio]]:
    with some_studios(["studio-1", "studio-2", "studio-3"]) as studios:
        yield studios


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    """With a hub that has the model, and a systemd of its own."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("systemctl", "loginctl"):
        double = (ROOT / "tests" / "integration" / "managers.py").read_text()
        (tools / name).write_text(f"#!{sys.executable}\n{double}")
        (tools / name).chmod(0o755)
    files = {
        "config.json": json.dumps({**CONFIG, "num_hidden_layers": 1}).encode(),
        "tokenizer.json": b"{}",
        "model.safetensors": safetensors(8),
    }
    with hub_of(files, MODEL) as hub, operating() as operator:
        operator.environ |= {
            "HF_ENDPOINT": hub.url,
            "STUDIOFLEET_MODELS": str(tmp_path / "models"),
            "HOME": str(tmp_path),
            "PATH": f"{tools}:{os.environ['PATH']}",
        }
        yield operator


def typed(line: str, studios: list[Studio], wheels: Path) -> list[str]:
    """A command of the first block, for Macs of the tests and an engine that needs no weights."""
    program, *words = shlex.split(line)
    assert program == "clusterctl"
    if words[:2] == ["node", "add"]:
        (studio,) = (it for it in studios if words[2] == f"{it.name}.local")
        return [*studio.add_words(wheels), *(word for word in words[3:] if word == "--ask-sudo")]
    if words[0] == "init":
        return [*words, "--http", "127.0.0.1:0"]
    return [*words, "--engine", "fake"] if words[0] == "add-worker" else words


def test_each_command_of_the_text_is_typed_here():
    assert TYPED.keys() | GO_ON.keys() == IN_PROSE
    for page, words in (TYPED | GO_ON).items():
        assert set(page.split()) - PLACEHOLDERS <= set(words.split()), page


@pytest.mark.integration
@needs_sshd
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="what acts for root has to be root")
def test_three_macs_serve_a_model_and_are_operated(operator: Operator, studios: list[Studio], tmp_path: Path):
    wheels = maker_of_wheels(tmp_path)("")
    for line in BLOCK:
        operator.run(*typed(line, studios, wheels), limit_s=300)
        if line.startswith("clusterctl init"):
            listen_to_others(operator)
    assert {w["node"] for w in operator.status()["workers"]} == {it.name for it in studios}

    url, headers = f"{operator.url()}/v1/chat/completions", {"x-request-id": "of-the-page"}
    asked = httpx.post(url, headers=headers, json=chat("hi", model=SERVED), timeout=60)
    assert asked.status_code == 200
    for words in TYPED.values():
        refused = words.endswith("helper remove")  # while services are there
        operator.run(*words.split(), code=3 if refused else 0, limit_s=300)
        if words == "restart near-1":
            operator.wait_state("near-1", "ready")
            ends_at_ctrl_c(operator, GO_ON["logs ID -f"])
    ends_at_ctrl_c(operator, GO_ON["up --foreground"])


def ends_at_ctrl_c(operator: Operator, words: str) -> None:
    """After it has said something."""
    process = operator.begin(*words.split())
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        assert process.returncode in (0, 130)
    finally:
        process.kill()
        process.wait()
