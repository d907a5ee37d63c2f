"""Workers over tcp, with keys: who comes in, who does not, and what each side says about it."""

from __future__ import annotations

import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import zmq

from clusterctl.wire_keys import ensure_pairs, public_key
from protocol.addresses import Home, endpoint
from protocol.configfile import read_config
from protocol.messages import Generate, Welcome
from protocol.states import ExitCode
from protocol.wire_keys import allow, pin_gateway_key, read_wire_secret, secret_path
from tests.integration.cluster import PATIENCE_S, Cluster, chat, config_text, fake_worker, script, wait_for
from tests.integration.scripted_worker import ScriptedWorker

pytestmark = pytest.mark.integration

OTHER_KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
MARK = "xylophone"
READ_AGAIN = "read the configuration again"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Site:
    """A gateway that listens here and over tcp, and worker's machines elsewhere: homes of their own."""

    def __init__(self, folder: Path, *, insecure: bool = False) -> None:
        self._folder = folder
        self.tcp = f"tcp://127.0.0.1:{free_port()}"
        self.insecure = insecure
        self.gateway = self._home("gateway", f'"ipc", "{self.tcp}"', "", insecure=insecure)
        ensure_pairs(self.gateway.home, read_config(self.gateway.home.config))
        self.machines: list[Cluster] = []

    def _home(self, name: str, listen: str, workers: str, *, insecure: bool) -> Cluster:
        wire = f"listen = [{listen}]\ninsecure_tcp = {str(insecure).lower()}\n"
        return Cluster(self._folder / name, config_text(wire + workers))

    def machine(
        self, worker_id: str, *, dials: str = "", insecure: bool = False, model: str = "fake-model"
    ) -> Cluster:
        """Another machine with a worker that knows the gateway's key, and is not allowed yet."""
        worker = fake_worker(worker_id, model=model)
        machine = self._home(worker_id, f'"{dials or self.tcp}"', worker, insecure=insecure)
        public_key(machine.home, worker_id)
        pin_gateway_key(machine.home, "gw-1", public_key(self.gateway.home, "gw-1"))
        self.machines.append(machine)
        return machine

    def allow(self, machine: Cluster, worker_id: str) -> None:
        """Returns when the gateway has read it."""
        allow(self.gateway.home, worker_id, public_key(machine.home, worker_id))
        before = self.gateway.log("gw-1").count(READ_AGAIN)
        self.gateway.signal("gw-1", signal.SIGHUP)
        wait_for(lambda: self.gateway.log("gw-1").count(READ_AGAIN) > before, "the list to be read")

    def worker(self, worker_id: str, model: str) -> Cluster:
        """One that runs and is ready."""
        machine = self.machine(worker_id, model=model)
        self.allow(machine, worker_id)
        machine.start("worker", worker_id)
        self.gateway.wait_ready(worker_id)
        return machine

    def options(self, home: Home, worker_id: str) -> dict[int, bytes]:
        """Of a socket that comes with the key of that worker."""
        secret = read_wire_secret(home, worker_id).encode()
        return {
            zmq.CURVE_SECRETKEY: secret,
            zmq.CURVE_PUBLICKEY: zmq.curve_public(secret),
            zmq.CURVE_SERVERKEY: public_key(self.gateway.home, "gw-1").encode(),
        }

    def ask(self, content: str, *, patience_s: float = PATIENCE_S, **fields: Any) -> httpx.Response:
        url = self.gateway.url() + "/v1/chat/completions"
        return httpx.post(url, json=chat(content, **fields), timeout=patience_s)

    def detail(self, worker_id: str) -> tuple[str, str]:
        state = self.gateway.worker(worker_id)
        return state.get("detail", ""), state.get("last_error", "")

    def stop(self) -> None:
        for cluster in (*self.machines, self.gateway):
            cluster.stop()


@contextmanager
def site(*, insecure: bool = False) -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="sf-test-"))
    found = Site(folder, insecure=insecure)
    try:
        found.gateway.start("gateway", "gw-1")
        found.gateway.url()
        yield found
    finally:
        found.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def here() -> Iterator[Site]:
    with site() as found:
        yield found
        assert "Traceback" not in found.gateway.log("gw-1")


def logged(cluster: Cluster, process_id: str, words: str) -> None:
    wait_for(lambda: words in cluster.log(process_id), f"{words!r} in the log of {process_id}")


class Tap:
    """Stands between a worker and a gateway and keeps what it sees."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.seen = b""
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        inner, _ = self._listener.accept()
        outer = socket.create_connection(("127.0.0.1", self._port))
        for source, sink in ((inner, outer), (outer, inner)):
            threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with source, sink:
            try:
                while piece := source.recv(65_536):
                    self.seen += piece
                    sink.sendall(piece)
            except OSError:
                return

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("insecure", [False, True])
def test_what_travels_over_tcp_can_be_read_by_nobody_else(insecure: bool):
    with site(insecure=insecure) as there, closing(Tap(int(there.tcp.rpartition(":")[2]))) as tap:
        machine = there.machine("w-1", dials=tap.endpoint, insecure=insecure)
        there.allow(machine, "w-1")
        machine.start("worker", "w-1")
        there.gateway.wait_ready("w-1")
        answer = there.ask(script(tokens=[MARK]))
        assert answer.json()["choices"][0]["message"]["content"] == MARK
        assert (MARK.encode() in tap.seen) is insecure


def test_a_worker_whose_key_is_unknown_comes_in_once_it_is_allowed(here: Site):
    machine = here.machine("w-unknown")
    key = public_key(machine.home, "w-unknown")
    machine.start("worker", "w-unknown")
    logged(machine, "w-unknown", f"clusterctl worker-key allow ID '{key}'")
    logged(here.gateway, "gw-1", f"clusterctl worker-key allow ID '{key}'")
    assert here.gateway.worker("w-unknown") == {}
    here.allow(machine, "w-unknown")
    here.gateway.wait_ready("w-unknown")


def test_a_worker_cannot_come_with_the_key_of_another(here: Site):
    machine = here.machine("w-mine")
    here.allow(machine, "w-mine")
    options = here.options(machine.home, "w-mine")
    with closing(ScriptedWorker(here.tcp, "w-mine", options=options)) as peer:
        assert peer.hello().refused == ""
    with closing(ScriptedWorker(here.tcp, "w-yours", options=options)) as peer:
        assert "came with the key of 'w-mine'" in peer.hello().refused
    assert here.gateway.worker("w-yours") == {}


def test_a_worker_that_is_revoked_is_left_within_a_second_and_may_come_back(here: Site):
    first = here.worker("w-first", "twins")
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(here.ask, script(tokens=["a"], repeat=60, delay_ms=50), model="twins")
        wait_for(lambda: here.gateway.worker("w-first")["running"], "it to run")
        here.worker("w-second", "twins")
        allow(here.gateway.home, "w-first", None)
        wait_for(lambda: here.detail("w-first")[0] == "refused", "it to be left", 10.0)
        assert "is not allowed (any more)" in here.detail("w-first")[1]
        assert answer.result().json()["choices"][0]["message"]["content"] == "a" * 60
    allow(here.gateway.home, "w-first", public_key(first.home, "w-first"))
    here.gateway.wait_ready("w-first")


def test_a_worker_that_was_revoked_gets_no_request_even_if_it_says_nothing_more(here: Site):
    machine = here.machine("w-quiet")
    here.allow(machine, "w-quiet")
    options = here.options(machine.home, "w-quiet")
    with closing(ScriptedWorker(here.tcp, "w-quiet", model="quiet", options=options)) as peer:
        assert peer.hello().refused == ""
        allow(here.gateway.home, "w-quiet", None)
        assert "not allowed (any more)" in peer.wait(Welcome, lambda welcome: bool(welcome.refused)).refused
        with pytest.raises(httpx.ReadTimeout):  # the model may come back, and its requests wait
            here.ask("hi", model="quiet", patience_s=1.0)
        peer.look()
        assert not peer.has(Generate)


def test_a_worker_that_does_not_encrypt_gets_nowhere_and_both_sides_say_why(here: Site):
    machine = here.machine("w-plain", insecure=True)
    machine.start("worker", "w-plain")
    logged(machine, "w-plain", "it encrypts, and insecure_tcp is set here")
    logged(here.gateway, "gw-1", "it does not encrypt")
    assert here.gateway.worker("w-plain") == {}


def test_a_worker_that_encrypts_does_not_speak_to_a_gateway_that_does_not():
    with site(insecure=True) as there:
        machine = there.machine("w-1")
        machine.start("worker", "w-1")
        logged(machine, "w-1", "it does not encrypt; remove insecure_tcp there")
        logged(there.gateway, "gw-1", "insecure_tcp is set here; set it on both machines, or on none")


def test_a_worker_speaks_only_to_the_gateway_whose_key_it_expects(here: Site):
    machine = here.machine("w-pinned")
    here.allow(machine, "w-pinned")
    pin_gateway_key(machine.home, "gw-1", OTHER_KEY)
    machine.start("worker", "w-pinned")
    logged(machine, "w-pinned", "clusterctl worker-key pin gw-1 KEY")
    logged(here.gateway, "gw-1", "it expects another key of this gateway")
    assert here.gateway.worker("w-pinned") == {}


def test_workers_of_the_machine_itself_need_no_key(here: Site):
    with closing(ScriptedWorker(endpoint("ipc", "gw-1", here.gateway.home), "w-local")) as peer:
        assert peer.hello().refused == ""


def test_without_keys_nothing_is_bound_to_tcp(tmp_path: Path):
    home = Home(tmp_path / "home")
    cluster = Cluster(home.path, config_text('listen = ["tcp://0.0.0.0:5555"]\n'))
    cluster.start("gateway", "gw-1")
    assert cluster.wait_exit("gw-1") == ExitCode.MISCONFIGURED
    assert "clusterctl worker-key show gw-1" in cluster.log("gw-1")


def test_a_worker_whose_key_others_may_read_does_not_start(here: Site):
    machine = here.machine("w-open")
    secret_path(machine.home, "w-open").chmod(0o644)
    machine.start("worker", "w-open")
    assert machine.wait_exit("w-open") == ExitCode.MISCONFIGURED
    assert "chmod 600" in machine.log("w-open")
    assert read_wire_secret(here.gateway.home, "gw-1") not in machine.log("w-open")
