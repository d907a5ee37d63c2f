"""`clusterctl plan` and `apply` over this machine and others: real processes, real sshds, black holes."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.wire_keys import read_allowed
from tests.fleet.installed import join, prefix_of
from tests.fleet.sshd import Machine, free_port, needs_sshd
from tests.integration.cluster import wait_for
from tests.integration.operating import Operator, operating

pytestmark = [pytest.mark.integration, needs_sshd, pytest.mark.timeout(600)]

PAGE = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()
BLOCK = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[1]
PLAN, APPLY = (line.removeprefix("clusterctl ").split() for line in BLOCK.splitlines())
"""Of the page docs/fleet.md."""
UNCHANGED = "unchanged: everything runs as configured\n"


@pytest.fixture(scope="module")
def operator(studios: list[Machine]) -> Iterator[Operator]:
    with operating() as operator:
        operator.run("init", "--workers", "0", "--http", "127.0.0.1:0")
        yield operator


def write(operator: Operator, studios: list[Machine], workers: dict[str, str], holes: str = "") -> None:
    """The configuration with these workers, each with its node and further keys."""
    text = re.sub(r"\n\[\[.*", "\n", operator.home.config.read_text(), flags=re.DOTALL)
    text = text.replace('listen = ["ipc"]', f'listen = ["ipc", "tcp://127.0.0.1:{free_port()}"]')
    operator.home.config.write_text(text + holes)
    join(operator, *studios)
    with operator.home.config.open("a") as file:
        for worker_id, keys in workers.items():
            file.write(f'\n[[workers]]\nid = "{worker_id}"\nmodel = "fake-model"\nengine = "fake"\n{keys}\n')


def actions(operator: Operator, code: int = 0) -> list[tuple[str, str, str]]:
    document = msgspec.json.decode(operator.run("plan", "--json", code=code))
    return [(it["node"], it["verb"], it["id"]) for it in document["actions"]]


def pids(operator: Operator) -> dict[str, Any]:
    return {worker["id"]: worker["pid"] for worker in operator.status()["workers"]}


WORKERS = {"near-1": "", "far-1": 'node = "studio-2"', "far-2": 'node = "studio-3"'}


def test_what_is_wanted_runs_everywhere_but_where_nobody_answers(operator: Operator, studios: list[Machine]):
    with ExitStack() as stack:
        holes = ""
        for name in ("studio-8", "studio-9"):
            silent = stack.enter_context(socket.socket())
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            holes += f'\n[[nodes]]\nname = "{name}"\nhost = "127.0.0.1"\nport = {silent.getsockname()[1]}\n'
        write(operator, studios, WORKERS, holes)
        begun, arrived = time.monotonic(), {}
        with operator.begin(*PLAN) as planning:
            assert planning.stdout is not None
            for line in planning.stdout:
                arrived[line.partition(": ")[0]] = (time.monotonic() - begun, line)
        assert planning.returncode == 6
        assert "start near-1: it does not run" in arrived["local"][1]
        assert "start far-1: it does not run" in arrived["studio-2"][1]
        assert "not reached: studio-9 (127.0.0.1): it does not answer" in arrived["studio-9"][1]
        assert all(arrived[name][0] < 10 for name in ("local", "studio-2", "studio-3"))
    write_again(operator, studios, WORKERS)
    assert "4 done" in operator.run(*APPLY, limit_s=240)
    assert {w["id"]: w["state"] for w in operator.status()["workers"]} == dict.fromkeys(WORKERS, "ready")
    assert read_allowed(operator.home).keys.keys() == WORKERS.keys()
    assert operator.answers()
    before = pids(operator)
    assert operator.run("apply") == UNCHANGED
    assert pids(operator) == before


def write_again(operator: Operator, studios: list[Machine], workers: dict[str, str]) -> None:
    """What was pinned is not pinned twice."""
    pinned = operator.home.keys / "known_hosts"
    text = pinned.read_text()
    write(operator, studios, workers)
    pinned.write_text(text)


def test_a_change_moves_starts_anew_and_ends_what_it_is_about(operator: Operator, studios: list[Machine]):
    before = pids(operator)
    changed = {
        "near-1": "",
        "far-1": 'node = "studio-2"\nmax_num_seqs = 3',
        "far-2": 'node = "studio-2"\naliases = ["further"]',
    }
    write_again(operator, studios, changed)
    expected = [
        ("studio-3", "stop", "far-2"),
        ("local", "tell", None),
        ("studio-2", "start", "far-2"),
        ("studio-2", "restart", "far-1"),
    ]
    assert actions(operator) == expected
    preview = operator.run("apply", "--dry-run")
    assert "--- studio-2/cluster.toml\n" in preview
    assert "+max_num_seqs = 3\n" in preview
    assert pids(operator) == before
    prefix = prefix_of(studios[0])
    (prefix / "hold").write_text("restart")
    applying = operator.begin("apply")
    wait_for((prefix / "holding").exists, "it to come so far", patience_s=200)
    applying.kill()
    applying.communicate()
    (prefix / "hold").unlink()
    assert "was interrupted in the step 'studio-2: restart far-1" in operator.run("plan")
    said = operator.run("apply", limit_s=240)
    assert "what it left to do is done now" in said
    # What was asked of the machine by the one that was killed may be done there only now.
    wait_for(lambda: pids(operator)["far-1"] not in (before["far-1"], None), "far-1 to be another process")
    assert operator.wait_state("far-1", "ready")["max_num_seqs"] == 3
    operator.wait_state("far-2", "ready")
    assert pids(operator)["near-1"] == before["near-1"]
    assert "far-2" not in (prefix_of(studios[1]) / "etc" / "cluster.toml").read_text()
    assert operator.run("plan").endswith(UNCHANGED)

    write_again(operator, studios, {"near-1": ""})
    assert actions(operator) == [
        ("studio-2", "stop", "far-1"),
        ("studio-2", "stop", "far-2"),
        ("local", "tell", None),
    ]
    operator.run("apply", limit_s=240)
    assert read_allowed(operator.home).keys.keys() == {"near-1"}
    assert list((prefix / "etc" / "keys" / "wire").glob("far-*.key")) == []
    assert operator.run("apply") == UNCHANGED
    assert pids(operator) == {"near-1": before["near-1"]}
