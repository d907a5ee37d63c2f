"""A real worker process against the gateway's end of the wire: what it says, when, and how it ends."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.errors import WORKER_DIED
from protocol.messages import (
    PROTOCOL_VERSION,
    Abort,
    Accepted,
    ClearCaches,
    Deltas,
    Drain,
    Embed,
    Failed,
    Goodbye,
    Heartbeat,
    Hello,
    Ping,
    Rejected,
    Result,
    Started,
    Stats,
    Undrain,
    Welcome,
    WhoAreYou,
)
from protocol.values import Load
from tests.integration.cluster import Cluster, config_text, fake_worker, script, wait_for
from tests.integration.scripted_gateway import ScriptedGateway

pytestmark = pytest.mark.integration

ENDLESS = script(tokens=["a"], repeat=1_000_000, delay_ms=5)
FOREIGN = "tests.integration.foreign_engines:"


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="sf-wire-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def worker(
    extra: str = "", *, ready: bool = True, **settings: Any
) -> Iterator[tuple[ScriptedGateway, Cluster]]:
    """A worker `w-1` connected to a scripted gateway `gw-1`."""
    table = fake_worker("w-1", **{"drain_timeout_s": 2.0, **settings})
    engine = settings.pop("engine", None)
    if engine is not None:
        table = table.replace('engine = "fake"\n', "")
    with folder() as path:
        cluster = Cluster(path / "home", config_text(table, extra=extra))
        gateway = ScriptedGateway(cluster.home)
        try:
            cluster.start("worker", "w-1")
            if ready:
                gateway.wait_ready()
                gateway.send(Welcome(gateway_id="gw-1", protocol=PROTOCOL_VERSION))
            yield gateway, cluster
        finally:
            cluster.stop()
            gateway.close()


def test_hello_comes_before_the_model_is_loaded_and_again_after():
    with worker(ready=False, max_num_seqs=3, aliases=["default"], engine_options={"load_s": 1.0}) as (
        gateway,
        cluster,
    ):
        hello = gateway.wait_for(Hello)
        assert hello.state in ("starting", "loading")
        assert (hello.worker_id, hello.card.name, hello.card.aliases) == ("w-1", "fake-model", ("default",))
        assert (hello.card.engine, hello.capacity.max_num_seqs, hello.gateways) == ("fake", 3, 1)
        assert hello.protocol == PROTOCOL_VERSION
        assert hello.pid == cluster.processes["w-1"].pid
        loading = gateway.wait(
            lambda m: isinstance(m, Heartbeat) and m.state == "loading" and m.progress, "progress"
        )
        assert 0 < loading.progress <= 1
        assert loading.detail
        again = gateway.wait_for(Hello, state="ready")
        assert again.incarnation == hello.incarnation
        states = [m.state for m in gateway.heard if isinstance(m, Heartbeat)]
        assert states.index("loading") < states.index("warming")


def test_a_request_from_accepted_to_finished():
    with worker() as (gateway, _):
        gateway.ask("r", script(tokens=["He", "llo"]))
        finished = gateway.finished("r")
        assert gateway.kinds("r") == ["Accepted", "Started", "Delta", "Delta", "Finished"]
        assert gateway.text("r") == "Hello"
        assert finished.load == Load()


def test_streams_of_one_step_share_a_message():
    with worker(max_num_seqs=8) as (gateway, _):
        for number in range(8):
            gateway.ask(f"r{number}", script(tokens=["a"], repeat=40, delay_ms=20))
        for number in range(8):
            gateway.finished(f"r{number}")
        sizes = [len(m.deltas) for m in gateway.heard if isinstance(m, Deltas)]
        assert sum(sizes) == 320
        assert sizes.count(8) >= 20


def test_a_full_worker_rejects_and_a_waiting_place_is_one():
    with worker(max_num_seqs=1, max_waiting=1) as (gateway, _):
        for name in ("one", "two", "three"):
            gateway.ask(name, ENDLESS)
        rejected = gateway.wait_for(Rejected, request_id="three")
        assert (rejected.reason, rejected.load.running, rejected.load.waiting) == ("engine_busy", 1, 1)
        assert rejected.retry_after_s > 0
        gateway.send(Abort(request_id="one"))
        gateway.wait_for(Started, request_id="two")


def test_accepted_comes_at_once_behind_a_long_prefill():
    with worker(max_num_seqs=2) as (gateway, _):
        gateway.ask("long", script(tokens=["a"], prefill_ms=60_000))
        gateway.wait_for(Started, request_id="long")
        begin = time.monotonic()
        gateway.ask("next", script(tokens=["b"]))
        gateway.wait_for(Accepted, request_id="next")
        assert time.monotonic() - begin < 2.0
        gateway.finished("next")


def test_an_abort_is_followed_by_a_heartbeat_at_once():
    slow = "[heartbeat]\ninterval_s = 60.0\nlost_s = 600.0\nloop_stall_s = 600.0\n"
    with worker(slow, max_num_seqs=1) as (gateway, _):
        gateway.ask("r", ENDLESS)
        gateway.wait_for(Deltas)
        gateway.forget()
        gateway.send(Abort(request_id="r"))
        gateway.send(Abort(request_id="r"))
        gateway.send(Abort(request_id="never seen"))
        gateway.wait_for(Heartbeat, load=Load())
        gateway.ask("next", script(tokens=["b"]))
        gateway.finished("next")
        assert "Finished" not in gateway.kinds("r")


def test_what_is_no_message_and_what_is_unknown_do_no_harm():
    with worker() as (gateway, cluster):
        gateway.ask("r", script(tokens=["a"], repeat=20, delay_ms=20))
        for frames in ([b""], [b"\xc1\xff"], [msgspec.msgpack.encode({"type": "Generate"})]):
            gateway.send_raw(frames)
        gateway.send_raw([msgspec.msgpack.encode({"type": "FromTheFuture", "x": 1})])
        gateway.send(Stats(request_id="s"))
        assert gateway.wait_for(Result).value["messages"] == {"malformed_messages": 3, "unknown_messages": 1}
        gateway.finished("r")
        assert "Traceback" not in cluster.log("w-1")


def test_who_are_you_is_answered_with_hello():
    with worker() as (gateway, _):
        gateway.forget()
        gateway.send(WhoAreYou(gateway_id="gw-1"))
        assert gateway.wait_for(Hello).state == "ready"


def test_a_refusal_is_logged_in_its_words():
    with worker() as (gateway, cluster):
        gateway.send(Welcome(gateway_id="gw-1", protocol=(2, 0), refused="upgrade the worker to 2.x"))
        wait_for(lambda: "upgrade the worker to 2.x" in cluster.log("w-1"), "the words in the log")


def test_a_new_gateway_hears_hello_and_nothing_of_the_old_ones_requests():
    with worker() as (gateway, cluster):
        hello = gateway.wait_for(Hello)
        gateway.ask("r", ENDLESS)
        gateway.wait_for(Deltas)
        gateway.close()
        wait_for(lambda: "given up: the connection broke" in cluster.log("w-1"), "the worker to notice")
        gateway.open()
        assert gateway.wait_for(Hello).incarnation == hello.incarnation
        gateway.wait_for(Heartbeat, load=Load())
        gateway.hear(0.1)
        assert gateway.kinds("r") == []


def test_a_gateway_without_pings_loses_its_requests():
    with worker("[heartbeat]\ninterval_s = 0.1\nlost_s = 1.0\n") as (gateway, _):
        gateway.ask("r", ENDLESS)
        gateway.wait_for(Deltas)
        for _ in range(15):
            gateway.send(Ping(gateway_id="gw-1"))
            gateway.hear(0.1)
        assert "Failed" not in gateway.kinds("r")
        assert gateway.wait_for(Failed, request_id="r").code == "worker_lost"


def test_a_gateway_that_takes_no_messages_loses_its_requests():
    with worker(max_num_seqs=8) as (gateway, cluster):
        hello = gateway.wait_for(Hello)
        for number in range(8):
            endless = script(tokens=["a" * 100], repeat=1_000_000, delay_ms=1)
            gateway.ask(f"r{number}", endless, sampling={"max_tokens": 1_000_000})
        gateway.wait_for(Deltas)
        wait_for(lambda: "given up: it takes no messages" in cluster.log("w-1"), "the worker to notice")
        gateway.heard.clear()  # and not what was sent meanwhile and is still unread
        assert gateway.wait_for(Hello).incarnation == hello.incarnation
        gateway.wait_for(Heartbeat, load=Load())
        gateway.ask("next", script(tokens=["b"]))
        gateway.finished("next")


def test_a_hung_engine_shows_in_heartbeats_that_go_on():
    with worker("[heartbeat]\ninterval_s = 0.1\n") as (gateway, _):
        gateway.ask("r", script(tokens=["a", "b"], hang_at=1))
        gateway.wait(lambda m: isinstance(m, Heartbeat) and m.step_age_s > 1.0, "an old step")
        gateway.send(Abort(request_id="r"))
        gateway.wait(
            lambda m: isinstance(m, Heartbeat) and m.load.running == 0 and m.step_age_s > 1.0, "its end"
        )


def test_a_worker_whose_engine_hangs_gives_its_requests_up_and_ends_with_70():
    with worker("[heartbeat]\ninterval_s = 0.1\n", engine=FOREIGN + "EndsNever", step_stall_s=1.0) as (
        gateway,
        cluster,
    ):
        gateway.ask("slow", script(tokens=["a", "b"], delay_ms=1500))  # pauses are no hang
        gateway.finished("slow")
        gateway.ask("r", script(tokens=["a", "b"], hang_at=1))
        gateway.wait_for(Deltas)
        failed = gateway.wait_for(Failed, request_id="r")
        assert (failed.code, failed.reason) == ("worker_lost", WORKER_DIED)
        assert "the engine hangs" in failed.message
        gateway.ask("late", script(tokens=["c"]))
        detail = gateway.wait_for(Heartbeat, state="failed").detail
        assert "made no step for 1 s" in detail
        assert "step_stall_s" in detail
        assert cluster.wait_exit("w-1") == 70
        assert "Finished" not in gateway.kinds("late")


def test_a_hung_engine_is_found_although_its_client_left_and_the_worker_is_to_end():
    limits: dict[str, Any] = {"step_stall_s": 1.0, "drain_timeout_s": 60.0}
    with worker("[heartbeat]\ninterval_s = 0.1\n", **limits) as (gateway, cluster):
        gateway.ask("stuck", ENDLESS)
        gateway.wait_for(Started, request_id="stuck")
        gateway.ask("r", script(tokens=["a"], hang_at=0))
        gateway.wait_for(Started, request_id="r")
        gateway.send(Abort(request_id="r"))
        cluster.signal("w-1", signal.SIGTERM)
        assert gateway.wait_for(Failed, request_id="stuck").reason == WORKER_DIED
        assert cluster.wait_exit("w-1") == 70


def test_sigterm_lets_running_requests_end_and_takes_no_others():
    with worker(drain_timeout_s=60.0) as (gateway, cluster):
        gateway.ask("r", script(tokens=["a"], repeat=50, delay_ms=20))
        gateway.wait_for(Deltas)
        cluster.signal("w-1", signal.SIGTERM)
        gateway.wait_for(Heartbeat, state="draining")
        gateway.ask("late", script(tokens=["b"]))
        assert gateway.wait_for(Rejected, request_id="late").reason == "draining"
        cluster.signal("w-1", signal.SIGTERM)
        gateway.finished("r")
        assert gateway.text("r") == "a" * 50
        gateway.wait_for(Goodbye)
        assert cluster.wait_exit("w-1") == 0
        assert not [path for path in cluster.home.run.iterdir() if path.name.startswith("w-1")]


def test_after_the_goodbye_nothing_is_said_however_long_the_engine_takes_to_end():
    beat = "[heartbeat]\ninterval_s = 0.1\n"
    with worker(beat, engine=FOREIGN + "StopsSlowly", engine_options={}) as (gateway, cluster):
        cluster.signal("w-1", signal.SIGTERM)
        gateway.wait_for(Goodbye)
        gateway.send(WhoAreYou(gateway_id="gw-1"))
        assert cluster.wait_exit("w-1") == 0
        gateway.hear()
        assert isinstance(gateway.heard[-1], Goodbye)


def test_what_is_not_done_in_time_is_given_up():
    with worker(drain_timeout_s=0.3) as (gateway, cluster):
        gateway.ask("r", ENDLESS)
        gateway.wait_for(Deltas)
        cluster.signal("w-1", signal.SIGTERM)
        assert gateway.wait_for(Failed, request_id="r").code == "worker_lost"
        gateway.wait_for(Goodbye)
        assert cluster.wait_exit("w-1") == 0


@pytest.mark.parametrize(("then", "code"), [("exit", 0), ("restart", 75)])
def test_asked_to_drain_and_end(then: str, code: int):
    with worker() as (gateway, cluster):
        gateway.ask("r", script(tokens=["a"], repeat=10, delay_ms=20))
        gateway.wait_for(Deltas)
        gateway.send(Drain(then=then))
        gateway.finished("r")
        assert cluster.wait_exit("w-1") == code


def test_drained_and_taken_back():
    with worker() as (gateway, _):
        gateway.send(Drain())
        gateway.wait_for(Heartbeat, state="draining")
        gateway.ask("no", script(tokens=["a"]))
        gateway.wait_for(Rejected, request_id="no", reason="draining")
        gateway.forget()
        gateway.send(Undrain())
        gateway.wait_ready()
        gateway.ask("yes", script(tokens=["a"]))
        gateway.finished("yes")


def test_sigterm_while_loading_ends_within_a_piece_and_leaves_nothing():
    with worker(ready=False, engine_options={"load_s": 600.0}) as (gateway, cluster):
        gateway.wait_for(Heartbeat, state="loading")
        begin = time.monotonic()
        cluster.signal("w-1", signal.SIGTERM)
        assert cluster.wait_exit("w-1") == 0
        assert time.monotonic() - begin < 5.0
        gateway.wait_for(Goodbye)
        assert not [path for path in cluster.home.run.iterdir() if path.name.startswith("w-1")]
        assert "Traceback" not in cluster.log("w-1")


def test_a_killed_worker_leaves_a_lock_that_the_next_one_takes(tmp_path: Path):
    log = tmp_path / "starts"
    with worker(engine_options={"start_log": str(log)}) as (gateway, cluster):
        gateway.ask("r", script(tokens=["a", "b"], exit_at=1))
        assert cluster.wait_exit("w-1") == -signal.SIGKILL
        assert log.read_text() == "r 0\n"
        gateway.forget()
        cluster.start("worker", "w-1")
        gateway.wait_ready()


def test_a_second_worker_of_an_id_is_refused_and_the_first_goes_on():
    with worker() as (gateway, cluster):
        first = cluster.processes["w-1"]
        second = cluster.start("worker", "w-1")
        assert second.wait(timeout=20) == 78
        cluster.processes["w-1"] = first
        assert f"held by the process {first.pid}" in cluster.log("w-1")
        gateway.ask("r", script(tokens=["a"]))
        gateway.finished("r")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("version = 1\n", "there is no gateway"),
        ("version = [", "not valid TOML"),
        (config_text(fake_worker("w-2")), "no worker has the id 'w-1'"),
        (config_text(fake_worker("w-1", engine_options={"speed": 1})), "unknown field `speed`"),
        (config_text(fake_worker("w-1").replace('"fake"', '"no.such:Engine"')), "cannot be imported"),
    ],
)
def test_a_misconfigured_worker_says_why_and_exits_78(config: str, words: str):
    with folder() as path:
        cluster = Cluster(path / "home", config)
        try:
            cluster.start("worker", "w-1")
            assert cluster.wait_exit("w-1") == 78
            assert words in cluster.log("w-1")
            assert "Traceback" not in cluster.log("w-1")
        finally:
            cluster.stop()


@pytest.mark.parametrize("name", ["BusyAtCall", "BusyAtFirstItem"])
def test_a_foreign_engine_serves_and_its_busy_is_a_rejection(name: str):
    with worker(engine=FOREIGN + name, max_num_seqs=4) as (gateway, _):
        gateway.ask("one", "hi", sampling={"stop": (" five",)})
        gateway.wait_for(Deltas)
        gateway.ask("two", "hi")
        assert gateway.wait_for(Rejected, request_id="two").reason == "engine_busy"
        assert gateway.kinds("two") == ["Accepted", "Rejected"]
        finished = gateway.finished("one")
        assert gateway.text("one") == "one two three four"
        assert (finished.finish_reason, finished.matched_stop) == ("stop", " five")
        gateway.ask("three", "hi")
        gateway.finished("three")
        assert gateway.text("three") == "one two three four five"


def test_an_engine_that_is_always_busy_is_ready_and_rejects():
    with worker(engine=FOREIGN + "AlwaysBusy") as (gateway, _):
        gateway.ask("r", "hi")
        assert gateway.wait_for(Rejected, request_id="r").load == Load()


def test_an_engine_beyond_help_ends_the_process_with_70_whatever_comes_later():
    with worker(engine=FOREIGN + "BreaksForGood") as (gateway, cluster):
        gateway.ask("r", "hi")
        assert gateway.wait_for(Failed, request_id="r").code == "worker_lost"
        if cluster.processes["w-1"].poll() is None:
            cluster.signal("w-1", signal.SIGTERM)
        assert cluster.wait_exit("w-1") == 70
        assert gateway.wait_for(Heartbeat, state="failed").detail.endswith("three steps failed in a row")


def test_a_model_that_cannot_be_loaded_ends_the_process_with_70():
    with worker(ready=False, engine=FOREIGN + "CannotLoad") as (gateway, cluster):
        assert "the disk is gone" in gateway.wait_for(Heartbeat, state="failed").detail
        assert cluster.wait_exit("w-1") == 70


def test_what_this_worker_does_not_do_is_said():
    with worker() as (gateway, _):
        gateway.send(Embed(request_id="e", inputs=("a",)))
        gateway.send(ClearCaches(request_id="c"))
        assert gateway.wait_for(Failed, request_id="e").code == "unsupported"
        assert gateway.wait_for(Result, request_id="c").value is None
        gateway.wait_for(Heartbeat, cache_epoch=1)


def test_a_worker_serves_two_gateways_side_by_side():
    with folder() as path:
        cluster = Cluster(path / "home", config_text(fake_worker("w-1"), gateways=("gw-1", "gw-2")))
        gateways = [ScriptedGateway(cluster.home, name) for name in ("gw-1", "gw-2")]
        try:
            cluster.start("worker", "w-1")
            for gateway in gateways:
                assert gateway.wait_for(Hello).gateways == 2
                gateway.wait_ready()
            for gateway in gateways:
                gateway.ask("same", script(tokens=[gateway.id], repeat=5, delay_ms=10))
            for gateway in gateways:
                gateway.finished("same")
                assert gateway.text("same") == gateway.id * 5
        finally:
            cluster.stop()
            for gateway in gateways:
                gateway.close()


def test_a_worker_without_its_gateway_waits_for_it():
    with folder() as path:
        cluster = Cluster(path / "home", config_text(fake_worker("w-1")))
        gateway = None
        try:
            cluster.start("worker", "w-1")
            wait_for(lambda: "is ready" in cluster.log("w-1"), "the worker to be ready")
            gateway = ScriptedGateway(cluster.home)
            gateway.wait_ready()
        finally:
            cluster.stop()
            if gateway is not None:
                gateway.close()


def test_an_open_socket_folder_is_refused():
    with folder() as path:
        cluster = Cluster(path / "home", config_text(fake_worker("w-1")))
        cluster.home.run.mkdir(mode=0o755)
        os.chmod(cluster.home.run, 0o755)
        try:
            cluster.start("worker", "w-1")
            assert cluster.wait_exit("w-1") == 78
            assert "chmod 700" in cluster.log("w-1")
        finally:
            cluster.stop()
