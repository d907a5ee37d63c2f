"""Three Macs from `node add` to `node remove`, with the embedded model. Not verified on a Mac.

Real are sshd, the installations on the nodes, MLX, all processes and sockets; a double is each launchd.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from clusterctl.wheelhouse import read_wheelhouse
from protocol.addresses import models_folder
from tests.faults.aftermath import total
from tests.fleet.operators import fleet_of
from tests.fleet.sshd import needs_sshd
from tests.fleet.studios import Studio, maker_of_wheels, some_studios
from tests.fleet.watching import processes_of
from tests.integration.cluster import chat, wait_for
from tests.integration.load import Load
from tests.integration.operating import Operator
from worker.engine.embedded import ensure_embedded

pytestmark = [
    pytest.mark.mlx,
    needs_sshd,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.geteuid() != 0, reason="what acts for root has to be root"),
    pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="mlx is not installed"),
]

NODES = {"w-1": "studio-1", "w-2": "studio-2", "w-3": "studio-3", "w-4": "studio-3"}
NAMES = sorted(set(NODES.values()))
LIMIT_S = 600.0
QUESTION = "What is the capital of France?"
ASK = chat(QUESTION, model="smollm2-135m", temperature=0, max_tokens=16)
ENDS_AT_ONCE = 'import os, sys; "worker" in sys.orig_argv and os._exit(9)'


@pytest.fixture(scope="module")
def studios() -> Iterator[list[Studio]]:
    with some_studios(NAMES) as found:
        yield found


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return maker_of_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def operator() -> Iterator[Operator]:
    with fleet_of() as operator:
        yield operator


def put_model(studio: Studio, model: Path) -> None:
    """As if it had been brought there before, without another 500 MB of disk."""
    folder = studio.prefix / "models" / model.name
    folder.mkdir(parents=True)
    for path in model.iterdir():
        os.link(path, folder / path.name)


def answer(operator: Operator) -> str:
    answered = httpx.post(f"{operator.url()}/v1/chat/completions", json=ASK, timeout=LIMIT_S)
    assert answered.status_code == 200, answered.text
    return str(answered.json()["choices"][0]["message"]["content"])


def versions(operator: Operator) -> dict[str, str]:
    """Of the workers that serve."""
    return {w["id"]: w["version"] for w in operator.status()["workers"] if w["state"] == "ready"}


def test_a_fleet_from_its_first_mac_to_its_last(
    operator: Operator, studios: list[Studio], wheels: Callable[[str], Path]
):
    model = ensure_embedded(models_folder(os.environ), lambda done, doing: None)
    first, second, bad = wheels("# the first"), wheels("# the second"), wheels(ENDS_AT_ONCE)
    old, new = read_wheelhouse(first).version, read_wheelhouse(second).version
    for studio in studios:
        assert f"{studio.name} is added" in operator.run(*studio.add_words(first), limit_s=LIMIT_S)
        put_model(studio, model)
    for worker_id, node in NODES.items():
        words = ("--model", "embedded", "--host", node, "--id", worker_id, "--max-num-seqs", "4")
        operator.run("add-worker", *words, "--wait", limit_s=LIMIT_S)
    assert versions(operator) == dict.fromkeys(NODES, old)
    assert "Paris" in answer(operator)

    pid = operator.worker("w-1")["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: operator.worker("w-1")["pid"] not in (pid, None), "launchd to start it again", LIMIT_S)
    operator.wait_state("w-1", "ready")
    operator.run("drain", "w-2")
    assert operator.worker("w-2")["state"] == "draining"
    assert "Paris" in answer(operator)
    operator.run("undrain", "w-2")

    with Load(operator.url, 3, body=ASK) as load:
        load.wait_for_answers(3)
        upgrade = ("upgrade", "--canary", "studio-1", "--wheelhouse")
        said = operator.run(*upgrade, str(second), limit_s=LIMIT_S)
        assert said.endswith("studio-1: done\nstudio-2: done\nstudio-3: done\n")
        assert versions(operator) == dict.fromkeys(NODES, new)
        said = operator.run(*upgrade, str(bad), code=4, limit_s=LIMIT_S)
        assert "\nstudio-1: rolled back: w-1 does not come up: " in said
        assert versions(operator) == dict.fromkeys(NODES, new)
        load.wait_for_answers(3)
    assert load.outcomes.keys() == {"ok"}, load.outcomes
    assert total(operator.home, "studiofleet_takeovers_total") == 0  # each ended with nothing in hand

    for worker_id in NODES:
        operator.run("remove-worker", worker_id, limit_s=LIMIT_S)
    for studio, more in zip(studios, ([], ["--purge-models"], []), strict=True):
        operator.run("node", "remove", studio.name, *more, limit_s=LIMIT_S)
    assert json.loads(operator.run("node", "list", "--json")) == []
    wait_for(lambda: not any(processes_of(s.prefix) for s in studios), "all processes there to have ended")
    assert [studio.of_root() for studio in studios] == [[], [], []]
    left = [[path.name for path in s.prefix.iterdir()] if s.prefix.exists() else [] for s in studios]
    assert left == [["models"], [], ["models"]]
