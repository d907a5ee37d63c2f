"""What operators ask, and the one place of docs/observability.md that answers, each tried."""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from clusterctl.cli import cli
from protocol.keys import read_admin_key
from tests.faults.aftermath import metrics
from tests.integration.cluster import PATIENCE_S, chat, config_text, fake_worker, script, wait_for
from tests.integration.operating import Operator, operating

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PAGE = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()
SECTION = PAGE.partition("## Ten questions\n")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| (.+\?) \| (.+) \| `(test_\w+)` \|$", SECTION, re.MULTILINE)
ENDLESS = script(tokens=["a"], repeat=100_000, delay_ms=20)


@pytest.fixture(scope="module")
def operator() -> Iterator[Operator]:
    """With two workers of one place each, slow enough that two requests need both."""
    with operating() as found:
        found.home.path.mkdir(mode=0o700)
        settings: dict[str, Any] = {
            "max_num_seqs": 1,
            "max_waiting": 0,
            "engine_options": {"decode_tokens_per_s": 200},
        }
        workers = "".join(fake_worker(w, **settings) for w in ("w-1", "w-2"))
        found.home.config.write_text(config_text(workers))
        found.run("up", "--wait")
        yield found


def clusterctl(operator: Operator, *arguments: str) -> str:
    """As typed, without the cost of a process for each."""
    environ = {"STUDIOFLEET_HOME": str(operator.home.path)}
    result = CliRunner().invoke(cli, arguments, env=environ, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def ask(operator: Operator, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
    return httpx.post(operator.url() + path, json=body, timeout=PATIENCE_S)


@contextmanager
def streaming(operator: Operator, body: dict[str, Any]) -> Iterator[httpx.Response]:
    """An answer under way, which its client leaves at the end."""
    url = operator.url() + "/v1/chat/completions"
    with httpx.stream("POST", url, json={**body, "stream": True}, timeout=PATIENCE_S) as answer:
        assert answer.status_code == 200
        yield answer


def line_of(shown: str, worker_id: str) -> str:
    return next(line for line in shown.splitlines() if line.startswith(f"{worker_id} "))


def test_there_are_ten_and_each_names_one_place_and_a_test_that_asks_there():
    assert len(ROWS) == 10
    assert len(SECTION.strip().splitlines()) >= 12
    for question, answer, test in ROWS:
        place = re.findall(r"`([^`]+)`", answer)[0]
        words = re.findall(r"[\w./-]+", re.sub(r"\b(clusterctl|GET|ID|MODEL)\b", "", place))
        source = inspect.getsource(getattr(sys.modules[__name__], test))
        assert words, question
        assert all(word in source for word in words), (question, words)


def test_why_was_this_slow(operator: Operator):
    slow = ask(operator, **chat(script(tokens=["a", "b"], prefill_ms=300)))
    told = clusterctl(operator, "explain", slow.headers["x-request-id"])
    (prefill,) = re.findall(r"inside the worker: .*prefill (\d\.\d+) s", told)
    assert float(prefill) > 0.2
    assert "sent to w-" in told


def test_which_worker_gave_this_answer(operator: Operator):
    answer = ask(operator, **chat("hi"))
    worker = answer.headers["x-worker-id"]
    assert f"{worker} ends it: " in clusterctl(operator, "explain", answer.headers["x-request-id"])


def test_which_mac_is_full(operator: Operator):
    with streaming(operator, chat(ENDLESS)) as answer:
        full = answer.headers["x-worker-id"]
        (other,) = {"w-1", "w-2"} - {full}
        wait_for(lambda: operator.worker(full)["running"] == 1, "it to be told")
        shown = clusterctl(operator, "top", "--count", "1")
        assert " 1/1 " in line_of(shown, full)
        assert " 0/1 " in line_of(shown, other)
        assert " local " in line_of(shown, full)  # the column with the machine


def test_who_waits_and_for_what(operator: Operator):
    series = 'studiofleet_queue_depth{model="fake-model",priority="normal"}'
    assert metrics(operator.home)[series] == 0
    with streaming(operator, chat(ENDLESS)), streaming(operator, chat(ENDLESS)):
        third = threading.Thread(target=ask, args=(operator,), kwargs=chat("hi"))
        third.start()
        wait_for(lambda: metrics(operator.home)[series] == 1, "it to be told")
    third.join()
    assert metrics(operator.home)[series] == 0


def test_what_failed_last(operator: Operator):
    failed = ask(operator, **chat(script(tokens=["a"], raise_at=0)))
    assert failed.status_code >= 500
    key = {"authorization": f"Bearer {read_admin_key(operator.home)}"}
    # What /dashboard shows comes from there.
    with httpx.stream("GET", operator.url() + "/admin/feed", headers=key, timeout=PATIENCE_S) as feed:
        # An event that others were told just before may be older than the failure.
        event = next(line for line in feed.iter_lines() if failed.headers["x-request-id"] in line)
    assert '"code":"engine_failed"' in event
    assert httpx.get(operator.url() + "/dashboard").status_code == 200


def test_what_do_the_logs_say_of_this_request(operator: Operator):
    answer = ask(operator, **chat("hi"))
    told = clusterctl(operator, "logs", "--request", answer.headers["x-request-id"])
    assert "-> 200, " in told
    assert f"worker {answer.headers['x-worker-id']}" in told


def test_can_all_models_be_asked(operator: Operator):
    ready = operator.url() + "/health/ready"
    assert httpx.get(ready).status_code == 200
    for worker in ("w-1", "w-2"):
        clusterctl(operator, "drain", worker)
    told = wait_for(lambda: (a := httpx.get(ready)).status_code == 503 and a, "the drain to be told")
    assert told.json()["models"] == ["fake-model"]
    for worker in ("w-1", "w-2"):
        clusterctl(operator, "undrain", worker)
        operator.wait_state(worker, "ready")
    wait_for(lambda: httpx.get(ready).status_code == 200, "the end of the drain to be told")


def test_how_fast_is_it_for_clients(operator: Operator):
    shown = clusterctl(operator, "bench", "--model", "fake-model", "--concurrency", "2", "--max-tokens", "8")
    assert "first token" in shown
    assert re.findall(r" (w-[12]) ", shown) == ["w-1", "w-2"]


def test_did_a_worker_die(operator: Operator):
    restarts = operator.worker("w-1")["restarts"]
    os.kill(operator.worker("w-1")["pid"], signal.SIGKILL)
    wait_for(lambda: operator.worker("w-1").get("restarts") == restarts + 1, "the restart to be told")
    operator.wait_state("w-1", "ready")
    head, row = clusterctl(operator, "status"), line_of(clusterctl(operator, "status"), "w-1")
    assert "restarts" in head
    assert row.split()[head.splitlines()[2].split().index("restarts")] == str(restarts + 1)


def test_is_it_stuck(operator: Operator):
    def age(worker: str) -> float:
        return metrics(operator.home)[f'studiofleet_worker_step_age_seconds{{worker="{worker}"}}']

    assert (age("w-1"), age("w-2")) == (0, 0)
    fault = script(tokens=["a"], hang_at=0, once=True)
    hangs = threading.Thread(target=ask, args=(operator,), kwargs=chat(fault))
    hangs.start()
    stuck = wait_for(lambda: [w for w in ("w-1", "w-2") if age(w) > 1], "the age of the last step to be told")
    assert len(stuck) == 1
    os.kill(operator.worker(stuck[0])["pid"], signal.SIGKILL)
    hangs.join()  # it is answered elsewhere
