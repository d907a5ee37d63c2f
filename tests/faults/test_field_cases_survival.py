"""Faults that others met in the field, and requests that are to survive them. The ids are those of the issue.

FAULTS_FULL=1 takes the numbers of the field instead of those of a short form.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import httpx
import psutil
import pytest

from clusterctl.processes import read_record
from protocol.addresses import endpoint
from protocol.messages import Abort, Deltas, Finished, Generate, Heartbeat, Started
from protocol.values import Load as Work
from tests.faults.aftermath import at_rest, metrics, total, unscathed
from tests.integration import raw_http
from tests.integration.cluster import (
    PATIENCE_S,
    Cluster,
    chat,
    config_text,
    fake_worker,
    running,
    script,
    sse,
    text_of,
    wait_for,
)
from tests.integration.load import Load
from tests.integration.operating import Operator, operating
from tests.integration.scripted_gateway import ScriptedGateway
from tests.integration.scripted_worker import ScriptedWorker

FULL = bool(os.environ.get("FAULTS_FULL"))
CUTS = 200 if FULL else 12
RESTARTS = 500 if FULL else 2
KILLS = 50 if FULL else 2
QUICK = "heartbeat.interval_s = 0.2\nheartbeat.suspect_s = 0.6\nheartbeat.lost_s = 1.2\n"
LIMITS = "[limits]\nkeepalive_s = 0.3\n"
NUMBERS = [f"{number} " for number in range(40)]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600 if FULL else 180)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two workers of two slots, which are there again after each test."""
    table: dict[str, Any] = {"max_num_seqs": 2, "max_waiting": 0, "engine_options": {"max_model_len": 2000}}
    workers = fake_worker("w-1", **table) + fake_worker("w-2", **table)
    with running(config_text(workers, extra=QUICK + LIMITS), "w-1", "w-2") as found:
        yield found


def ask(cluster: Cluster, content: str, **fields: Any) -> httpx.Response:
    url = cluster.url() + "/v1/chat/completions"
    return httpx.post(url, json=chat(content, **fields), timeout=PATIENCE_S)


def is_well(cluster: Cluster) -> bool:
    answer = ask(cluster, script(tokens=["well"]))
    return bool(answer.json()["choices"][0]["message"]["content"] == "well")


def is_newer(cluster: Cluster, before: str) -> bool:
    return str(cluster.worker("w-1")["incarnation"]) > before


def has_restarted(operator: Operator, times: int) -> bool:
    return bool(operator.worker("w-1").get("restarts") == times)


class Reader:
    """A stream that is read in a thread of its own."""

    def __init__(self, cluster: Cluster, content: str, **fields: Any) -> None:
        self._url = cluster.url()
        self._body = chat(content, stream=True, **fields)
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        url = self._url + "/v1/chat/completions"
        with httpx.stream("POST", url, json=self._body, timeout=PATIENCE_S) as answer:
            self.worker = answer.headers.get("x-worker-id", "")
            self.lines.extend(f"status {answer.status_code}" for _ in range(answer.status_code != 200))
            for line in answer.iter_lines():
                self.lines.append(line)

    def wait_for_text(self, text: str) -> None:
        wait_for(lambda: text in text_of(sse(list(self.lines))), f"{text!r} to be said")

    def events(self) -> list[Any]:
        self._thread.join()
        return sse(self.lines)


# FC-01: the generation loop dies, HTTP stays up
def test_fc_01_a_request_that_fails_in_the_engine_fails_alone(cluster: Cluster):
    with unscathed(cluster.home):
        assert is_well(cluster)
        failed = ask(cluster, script(tokens=["a"], raise_at=0))
        assert (failed.status_code, failed.json()["error"]["code"]) == (500, "internal_error")
        events = Reader(cluster, script(tokens=["a", "b"], raise_at=1, delay_ms=100)).events()
        assert text_of(events) == "a"
        assert "error" in events[-1]
        assert is_well(cluster)
        for path in ("/health", "/health/ready", "/v1/models"):
            assert httpx.get(cluster.url() + path, timeout=PATIENCE_S).status_code == 200


# FC-01: the loop hangs, or ends, while everything around it lives
@pytest.mark.parametrize(
    ("fault", "words"), [("hang_at", "the engine hangs"), ("break_at", "the engine failed")]
)
def test_fc_01_an_engine_that_hangs_or_breaks_is_replaced_and_its_streams_go_on(fault: str, words: str):
    gateway = '[[gateways]]\nid = "gw-1"\nhttp = "127.0.0.1:0"\n'
    with operating() as operator:
        operator.home.path.mkdir(mode=0o700)
        operator.home.config.write_text("version = 1\n" + gateway + fake_worker("w-1", step_stall_s=1.0))
        operator.run("up", "--wait")
        before = operator.worker("w-1")["pid"]
        with unscathed(operator.home):
            url = operator.url()
            answers: list[httpx.Response] = []
            content = script(tokens=NUMBERS, delay_ms=10, once=True, **{fault: 20})

            def read() -> None:
                body = chat(content)
                answers.append(httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_S))

            client = threading.Thread(target=read)
            client.start()
            # Nobody is told that it serves once it is known that it does not.
            wait_for(lambda: httpx.get(url + "/health/ready").status_code == 503, "readiness to tell of it")
            client.join()
            assert answers[0].json()["choices"][0]["message"]["content"] == "".join(NUMBERS)
            wait_for(lambda: operator.worker("w-1")["state"] == "ready", "the next process")
        worker = operator.worker("w-1")
        assert worker["pid"] != before
        assert worker["restarts"] == 1
        assert words in worker["last_error"]


# FC-23: disconnect leaks a running slot
def test_fc_23_whoever_leaves_wherever_gives_the_slot_back(cluster: Cluster):
    rng = random.Random(23)
    content = script(tokens=["a", "b", "c", "d", "last"], delay_ms=10)
    points = [b"", b"HTTP/1.1 200", b'"content":"a"', b'"content":"c"', b'"content":"last"', b"[DONE]"]
    with unscathed(cluster.home):
        for number in range(CUTS):
            point = points[number % len(points)]
            body = chat(script(tokens=["a"], prefill_ms=60_000) if number % 7 == 6 else content, stream=True)
            with closing(raw_http.connect(cluster.url())) as connection:
                connection.sendall(raw_http.request(body))
                received = b""
                # Two tokens in one piece, as on a busy machine, hide a point; the end is always there.
                while not (point in received or b"[DONE]" in received or number % 7 == 6):
                    received += connection.recv(4096)
                time.sleep(rng.random() * 0.02)  # the case: any moment
                raw_http.reset(connection)
            cluster.wait_idle(patience_s=10.0)
        readers = [Reader(cluster, content) for _ in range(4)]
        assert [text_of(reader.events()) for reader in readers] == ["abcdlast"] * 4


# FC-27: abort path crashes although normal completion works
def test_fc_27_a_request_is_ended_in_every_state_without_harm_to_others():
    endless = script(tokens=["a"], repeat=1_000_000, delay_ms=5)
    with running(config_text(fake_worker("w-1", max_num_seqs=2, max_waiting=2)), gateways=()) as cluster:
        gateway = ScriptedGateway(cluster.home)
        try:
            cluster.start("worker", "w-1")
            gateway.wait_ready()
            gateway.ask("neighbour", endless)
            gateway.wait_for(Started, request_id="neighbour")

            def end(request_id: str) -> None:
                for _ in range(2):
                    gateway.send(Abort(request_id=request_id))

            def neighbour_is_alone() -> None:
                gateway.forget()
                alone = (1, 0)
                gateway.wait(
                    lambda m: isinstance(m, Heartbeat) and (m.load.running, m.load.waiting) == alone,
                    "the neighbour alone",
                )

            gateway.ask("decoding", endless)
            gateway.wait(lambda m: isinstance(m, Deltas) and "decoding" in str(m), "its tokens")
            gateway.ask("waiting", endless)
            gateway.ask("cut with the next", endless)
            for request_id in ("cut with the next", "decoding", "waiting", "nobody's"):
                end(request_id)
            neighbour_is_alone()
            gateway.ask("reading", script(tokens=["a"], prefill_ms=60_000))
            gateway.wait_for(Started, request_id="reading")
            end("reading")
            gateway.ask("done at once", script(tokens=["a"]))
            end("done at once")
            gateway.ask("done", script(tokens=["a"]))
            gateway.finished("done")
            end("done")
            neighbour_is_alone()
            gateway.wait_for(Deltas)
            end("neighbour")
            gateway.wait_for(Heartbeat, load=Work())
            cluster.signal("w-1", signal.SIGKILL)
            cluster.wait_exit("w-1")
            gateway.forget()
            cluster.start("worker", "w-1")
            gateway.wait_ready()
            end("decoding")
            gateway.ask("after", script(tokens=["b"]))
            assert isinstance(gateway.finished("after"), Finished)
            assert "Traceback" not in cluster.log("w-1")
        finally:
            gateway.close()


# FC-30: 4xx from a healthy worker opens the circuit breaker
def test_fc_30_requests_that_cannot_be_served_and_busy_workers_open_no_breaker(cluster: Cluster):
    bad: list[dict[str, Any]] = [
        {"content": "word " * 2500},
        {"content": "hi", "temperature": -1},
        {"content": "hi", "logit_bias": 7},
    ]
    busy = script(tokens=["a"], busy=True)
    with unscathed(cluster.home):
        retries = total(cluster.home, "studiofleet_retries_total")
        for number in range(20):
            answer = ask(cluster, **bad[number % 3])
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        rejected = sum(worker["rejected"] for worker in cluster.state()["workers"])
        url = cluster.url() + "/v1/chat/completions"
        for _ in range(3):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(url, json=chat(busy), timeout=0.5)
        assert sum(worker["rejected"] for worker in cluster.state()["workers"]) >= rejected + 6
        found = metrics(cluster.home)
        assert all(value == 0 for name, value in found.items() if "breaker" in name and "closed" not in name)
        assert total(cluster.home, "studiofleet_retries_total") == retries
        assert is_well(cluster)


# FC-32: ghost workers pile up, a new id on each restart
def test_fc_32_a_worker_that_is_killed_and_started_again_is_one_worker(cluster: Cluster):
    with unscathed(cluster.home):
        retries = total(cluster.home, "studiofleet_retries_total")
        for _ in range(RESTARTS):
            before = cluster.worker("w-1")["incarnation"]
            cluster.signal("w-1", signal.SIGKILL)
            cluster.wait_exit("w-1")
            assert all(is_well(cluster) for _ in range(2))
            cluster.start("worker", "w-1")
            wait_for(partial(is_newer, cluster, before), "the new process")
            cluster.wait_ready("w-1", "w-2")
            assert [worker["id"] for worker in cluster.state()["workers"]] == ["w-1", "w-2"]
            assert all(is_well(cluster) for _ in range(4))
        # A dead worker got one request at most before it was missed.
        assert total(cluster.home, "studiofleet_retries_total") - retries <= RESTARTS


# FC-36: tight timers turn load into death
def test_fc_36_a_worker_that_is_killed_again_and_again_under_load_costs_nothing_afterwards():
    with operating() as operator:
        operator.init("w-1", "w-2")
        operator.run("up", "--wait")
        with unscathed(operator.home):
            with Load(operator.url, clients=4) as load:
                for number in range(KILLS):
                    load.wait_for_answers(4)
                    record = read_record(operator.home.run / "w-1.pid")
                    assert record is not None
                    os.kill(record.pid, signal.SIGKILL)
                    wait_for(partial(has_restarted, operator, number + 1), "the next process", 60.0)
                    operator.wait_state("w-1", "ready")
            assert set(load.outcomes) == {"ok"}
            at_rest(operator.home)
            used = _cpu_s(operator)
            time.sleep(2.0)  # the case: a quiet while
            assert _cpu_s(operator) - used < 0.5
            sizes = {log.name: log.stat().st_size for log in operator.home.logs.glob("*.log*")}
            assert max(sizes.values()) < 100_000 + 1000 * load.outcomes["ok"], sizes
            assert operator.worker("w-1")["restarts"] == KILLS


def _cpu_s(operator: Operator) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in operator.pids())


# FC-79: worker lost in mid-answer: what may be retried
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_fc_79_a_stream_whose_worker_is_lost_after_20_tokens_shows_each_token_once(
    cluster: Cluster, number: signal.Signals
):
    with unscathed(cluster.home):
        reader = Reader(cluster, script(tokens=NUMBERS, delay_ms=40))
        reader.wait_for_text("".join(NUMBERS[:20]))
        victim = reader.worker
        cluster.signal(victim, number)
        events = reader.events()
        assert (text_of(events), events[-1]) == ("".join(NUMBERS), "[DONE]")
        if number == signal.SIGSTOP:
            cluster.signal(victim, signal.SIGCONT)
        else:
            cluster.wait_exit(victim)
            cluster.start("worker", victim)
        cluster.wait_ready("w-1", "w-2")


# FC-79: one malformed frame in the middle
def test_fc_79_bytes_that_are_no_message_in_mid_answer_concern_their_sender_only():
    config = config_text(fake_worker("w-1") + fake_worker("w-2", model="other"))
    with running(config, "w-2") as own:
        address = endpoint("ipc", "gw-1", own.home)
        card = {"can_resume": True, "fingerprint": "fake:fake-model"}
        with closing(ScriptedWorker(address, "w-9", model="fake-model", card=card)) as peer:
            assert peer.hello().refused == ""
            neighbour = Reader(own, script(tokens=NUMBERS, delay_ms=40), model="other")
            reader = Reader(own, script(tokens=NUMBERS, delay_ms=1))
            request = peer.wait(Generate)
            peer.start(request)
            peer.say(request, *NUMBERS[:20])
            reader.wait_for_text("".join(NUMBERS[:20]))
            own.start("worker", "w-1")
            own.wait_ready("w-1")
            peer.send_bytes(b"\xc1 no message")
            assert text_of(reader.events()) == "".join(NUMBERS)
            assert "it sent bytes that are no message" in own.log("gw-1")
            assert text_of(neighbour.events()) == "".join(NUMBERS)
            assert "Traceback" not in own.log("gw-1")


# FC-84: server thinks the client left
def test_fc_84_a_call_that_is_held_back_for_long_comes_whole_with_signs_of_life(cluster: Cluster):
    arguments = '{"text": "' + "x" * 40 + '"}'
    call = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    content = script(tokens=[call[at : at + 3] for at in range(0, len(call), 3)], delay_ms=35)
    with unscathed(cluster.home):
        reader = Reader(cluster, content, tools=tools)
        events = reader.events()
        deltas = [choice["delta"] for e in events[:-1] for choice in e["choices"]]
        told = "".join(c["function"].get("arguments", "") for d in deltas for c in d.get("tool_calls", ()))
        assert told.replace(" ", "") == arguments.replace(" ", "")
        assert events[-1] == "[DONE]"
        assert sum(line.startswith(":") for line in reader.lines) >= 2


def test_a_dead_worker_gets_no_request_later_than_one_attempt_after_its_loss(cluster: Cluster):
    with unscathed(cluster.home):
        retries = total(cluster.home, "studiofleet_retries_total")
        cluster.signal("w-1", signal.SIGKILL)
        assert all(is_well(cluster) for _ in range(20))
        assert total(cluster.home, "studiofleet_retries_total") <= retries + 1
        assert cluster.worker("w-1")["state"] == "stopped"
        cluster.wait_exit("w-1")
        cluster.start("worker", "w-1")
        cluster.wait_ready("w-1", "w-2")
