"""Doctor on a cluster that runs: nothing is found while it is well, and each fault that is seeded, by its id.

Faults of files, processes and ports are real. Those of a Mac are seeded into doubles of its tools, which
model our understanding: not verified on a Mac.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from clusterctl import home_facts
from clusterctl.bootunits import unit_name
from clusterctl.diagnosis import Finding
from clusterctl.doctor import examine, repair, report
from clusterctl.home_facts import read_facts
from clusterctl.runner import LocalRunner, Runner
from clusterctl.transcripts import RecordingRunner
from protocol.addresses import Home
from protocol.reachability import Reach
from tests.certificates import certificate
from tests.fleet.mac_shaped import MacShaped
from tests.integration.cluster import wait_for
from tests.integration.operating import Operator, operating

pytestmark = pytest.mark.integration

MARK = "xylophone"
HEADER = b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'


@dataclass
class Scene:
    """A home whose cluster runs, and what a fault changes in it for one test."""

    operator: Operator
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    undo: ExitStack
    mac: dict[str, str] | None = None
    """How the Mac is, where this machine is to look like one."""
    tables: str = ""
    """More of the configuration."""
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Home:
        return self.operator.home

    @property
    def runner(self) -> Runner:
        if self.mac is None:
            return LocalRunner()
        return MacShaped(self.folder, unit_name(self.home.path, Home.from_environment({}).path), self.mac)

    def look(self, runner: Runner | None = None) -> list[Finding]:
        config = self.home.config
        if self.tables:
            config = self.folder / "cluster.toml"
            config.write_text(self.home.config.read_text() + self.tables)
        environ = {**os.environ, **self.environ}
        return examine(read_facts(runner or self.runner, self.home, config, environ, datetime.now(UTC)))

    def ids(self) -> list[str]:
        return [finding.id for finding in self.look()]

    def gateway(self, **values: str) -> None:
        """One more, which does not run."""
        given = {"http": '"127.0.0.1:0"', **values}
        lines = "".join(f"{name} = {value}\n" for name, value in given.items())
        self.tables += f'\n[[gateways]]\nid = "gw-2"\n{lines}'

    def worker(self, *lines: str) -> None:
        """One more, which does not run."""
        self.tables += "\n".join(["", "[[workers]]", 'id = "w-9"', *lines, ""])

    def port(self, *, listening: bool) -> int:
        it = self.undo.enter_context(socket.socket())
        it.bind(("127.0.0.1", 0))
        if listening:
            it.listen()
        return int(it.getsockname()[1])


@pytest.fixture(scope="module")
def operator() -> Iterator[Operator]:
    with operating() as operator:
        operator.init("fake-1")
        operator.run("up", "--wait")
        yield operator


@pytest.fixture
def scene(operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with ExitStack() as undo:
        yield Scene(operator, tmp_path, monkeypatch, undo)


# --- what is the matter with files ---


def wrong_configuration(scene: Scene) -> None:
    scene.tables = "\n[nonsense]\n"


def open_folder(scene: Scene) -> None:
    change_mode(scene, scene.home.logs, 0o755)


def open_key(scene: Scene) -> None:
    change_mode(scene, scene.home.admin_key, 0o644)


def change_mode(scene: Scene, path: Path, mode: int) -> None:
    scene.undo.callback(path.chmod, path.stat().st_mode & 0o777)
    path.chmod(mode)


def mixed_pair(scene: Scene) -> None:
    cert, _key = certificate(scene.folder, "one", days=90)
    _cert, key = certificate(scene.folder, "other", days=90)
    scene.gateway(tls_cert=f'"{cert}"', tls_key=f'"{key}"')


def old_certificate(scene: Scene) -> None:
    cert, key = certificate(scene.folder, "one", days=2)
    scene.gateway(tls_cert=f'"{cert}"', tls_key=f'"{key}"')


def no_model(scene: Scene) -> None:
    scene.worker(f'model = "{scene.folder / "nowhere"}"')


def cut_model(scene: Scene) -> None:
    whole = len(HEADER).to_bytes(8, "little") + HEADER + b"12345678"
    (scene.folder / "model.safetensors").write_bytes(whole[:-1])
    (scene.folder / "config.json").write_text("{}")
    scene.worker(f'model = "{scene.folder}"')


def left_lock(scene: Scene) -> None:
    lock = scene.home.lock("w-7")
    lock.write_text("1\n")
    scene.undo.callback(lock.unlink, missing_ok=True)


# --- what is the matter with processes ---


def killed_supervisor(scene: Scene) -> None:
    pid = scene.operator.status()["supervisor"]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: scene.operator.status()["supervisor"]["pid"] is None, "the supervisor to end")
    scene.undo.callback(scene.operator.run, "up", "--wait")


def taken_port(scene: Scene) -> None:
    scene.gateway(http=f'"127.0.0.1:{scene.port(listening=False)}"')


def started_by_hand(scene: Scene) -> None:
    config = scene.folder / "by-hand.toml"
    config.write_text(
        scene.home.config.read_text() + '\n[[workers]]\nid = "w-8"\nmodel = "fake-model"\nengine = "fake"\n'
    )
    words = [sys.executable, "-P", "-m", "worker", "--config", str(config), "--id", "w-8"]
    log = scene.undo.enter_context((scene.folder / "log").open("wb"))
    process = subprocess.Popen(words, env=scene.operator.environ, stdout=log, stderr=log)
    scene.undo.callback(process.wait, timeout=30)
    scene.undo.callback(process.terminate)
    wait_for(lambda: b"starts" in (scene.folder / "log").read_bytes(), "the worker to start")


def parked_worker(scene: Scene) -> None:
    words = ("--engine", "nowhere.at.all:Engine", "--id", "w-6")
    scene.operator.run("add-worker", "--model", "some-model", *words)
    scene.undo.callback(scene.operator.run, "remove-worker", "w-6")
    scene.operator.wait_state("w-6", "parked")


def older_configuration(scene: Scene) -> None:
    before = scene.home.config.read_text()
    scene.undo.callback(scene.operator.run, "up")
    scene.undo.callback(scene.home.config.write_text, before)
    scene.home.config.write_text(before + "\n[takeover]\nenabled = false\n")
    scene.operator.run("up")


def newer_installation(scene: Scene) -> None:
    scene.monkeypatch.setattr(home_facts, "__version__", "9.9.9")


# --- what is the matter between them ---


def nobody_listens(scene: Scene) -> None:
    scene.gateway(listen=f'["tcp://127.0.0.1:{scene.port(listening=False)}"]')
    scene.undo.pop_all().close()  # nobody has the port any more, so that it is refused


def cut_off(scene: Scene, met: str = "ETIMEDOUT", number: int = 110, port: int = 5555) -> None:
    """As the worker, which runs, writes it itself."""
    log = scene.home.log("fake-1")
    told = Reach("gw-2", f"tcp://127.0.0.1:{port}", met, number)
    with log.open("a") as file:
        file.write(f"2026-12-02 12:00:00,000 WARNING worker.reach {told.line}\n")

    def connected() -> None:
        with log.open("a") as file:
            file.write("2026-12-02 12:00:01,000 INFO worker.link connected to gateway gw-2\n")

    scene.undo.callback(connected)


def privacy(scene: Scene) -> None:
    port = scene.port(listening=True)
    scene.mac = {}
    scene.gateway(listen=f'["tcp://127.0.0.1:{port}"]')
    # The listener has the port that a gateway of this machine would need.
    scene.monkeypatch.setattr("clusterctl.home_processes.busy_port", lambda _address: False)
    cut_off(scene, "EHOSTUNREACH", 65, port)


def local_name(scene: Scene) -> None:
    scene.gateway(http='"studio-2.local:0"', allow_fake="true")


def wrong_clock(scene: Scene) -> None:
    class Late(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return "Wed, 02 Dec 2020 12:00:00 GMT"

        def log_message(self, *_arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Late)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    scene.undo.callback(server.server_close)
    scene.undo.callback(thread.join)
    scene.undo.callback(server.shutdown)
    url = scene.home.http_url("gw-2")
    scene.gateway()
    url.write_text(f"http://127.0.0.1:{server.server_port}\n")
    scene.undo.callback(url.unlink)


# --- what is too small ---


def full_disk(scene: Scene) -> None:
    """A real one of 1 MiB would need root: the tool is doubled."""
    tools = scene.folder / "tools"
    tools.mkdir()
    (tools / "df").write_text("#!/bin/sh\necho head\necho /dev/disk3s5 1948455240 1948450000 1024 99% /\n")
    (tools / "df").chmod(0o755)
    scene.monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")


def large_caches(scene: Scene) -> None:
    scene.worker('model = "fake-model"', 'engine = "fake"', "prefix_cache_disk_mb = 999999999")


def large_worker(scene: Scene) -> None:
    scene.worker('model = "fake-model"', 'engine = "fake"', "memory_mb = 999999999")


def many_connections(scene: Scene) -> None:
    scene.tables += "\n[limits]\nmax_connections = 100000000\n"


def no_unit(scene: Scene) -> None:
    tools = scene.folder / "tools"
    tools.mkdir()
    (tools / "systemctl").write_text('#!/bin/sh\n[ "$2" = is-system-running ] && echo running\nexit 1\n')
    (tools / "systemctl").chmod(0o755)
    scene.monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")


# --- what is the matter with a Mac ---


def mac(**state: str) -> Callable[[Scene], None]:
    def seed(scene: Scene) -> None:
        scene.mac = state

    return seed


def firewall(scene: Scene) -> None:
    scene.mac = {"FIREWALL": "1"}
    scene.gateway(http='"0.0.0.0:0"', allow_fake="true")


def wired_leak(scene: Scene) -> None:
    """Nothing of a home runs: another one."""
    scene.mac = {"WIRED_PAGES": "14000000"}
    home = Home(scene.folder / "home")
    home.path.mkdir(mode=0o700)
    home.config.write_text(scene.home.config.read_text())
    scene.operator = Operator(home.path)


def protected_model(scene: Scene) -> None:
    scene.mac = {}
    scene.worker('model = "/Volumes/ssd/model"')


def list_gone(scene: Scene) -> None:
    scene.mac = {}
    runner = scene.runner
    (scene.folder / "job.plist").unlink()
    scene.monkeypatch.setattr(Scene, "runner", property(lambda _scene: runner))


SEEDS: list[tuple[str, Callable[[Scene], None], tuple[str, ...]]] = [
    ("config.invalid", wrong_configuration, ()),
    ("home.open", open_folder, ()),
    ("keys.open", open_key, ()),
    ("tls.pair", mixed_pair, ()),
    ("tls.expiry", old_certificate, ()),
    ("model.missing", no_model, ()),
    ("model.damaged", cut_model, ()),
    ("run.leftovers", left_lock, ()),
    ("supervisor.down", killed_supervisor, ("run.leftovers",)),
    ("gateway.port", taken_port, ()),
    ("process.stray", started_by_hand, ()),
    ("process.parked", parked_worker, ()),
    ("process.outdated", older_configuration, ()),
    ("version.skew", newer_installation, ()),
    ("gateway.unreachable", nobody_listens, ()),
    ("worker.cut-off", cut_off, ()),
    ("network.local-name", local_name, ()),
    ("clock.skew", wrong_clock, ("run.leftovers",)),
    ("boot.missing", no_unit, ()),
    ("disk.models", full_disk, ("disk.logs",)),
    ("disk.logs", full_disk, ("disk.models",)),
    ("disk.prefix-cache", large_caches, ()),
    ("memory.ceiling", large_worker, ()),
    ("limits.descriptors", many_connections, ()),
    ("boot.missing", mac(DOMAIN="nowhere"), ()),
    ("network.privacy", privacy, ()),
    ("macos.version", mac(VERSION="13.7.8"), ()),
    ("macos.arch", mac(TRANSLATED="1"), ()),
    ("power.sleep", mac(SLEEP="1"), ()),
    ("power.autorestart", mac(AUTORESTART="0"), ()),
    ("power.filevault", mac(FILEVAULT="On"), ()),
    ("updates.automatic", mac(UPDATES="1"), ()),
    ("firewall.gateway", firewall, ()),
    ("launchd.process-class", mac(SPAWN="daemon (3)"), ()),
    ("launchd.exit-timeout", mac(EXIT_TIMEOUT="5"), ()),
    ("launchd.minimum-runtime", mac(THROTTLE="30"), ()),
    ("launchd.list-gone", list_gone, ()),
    ("launchd.agent", mac(DOMAIN=f"gui/{os.getuid()}"), ()),
    ("memory.wired-limit", mac(WIRED_LIMIT="261000"), ()),
    ("memory.wired-leak", wired_leak, ("supervisor.down",)),
    ("panic.recent", mac(PANIC=f"panic-full-{datetime.now():%Y-%m-%d}-000000.0002.panic"), ()),
    ("model.protected-folder", protected_model, ("model.missing",)),
]


@pytest.mark.parametrize("state", [None, {}], ids=["linux", "mac"])
def test_a_machine_that_is_well_has_no_findings(scene: Scene, state: dict[str, str] | None):
    scene.mac = state
    assert scene.look() == []


@pytest.mark.parametrize(
    ("check_id", "seed", "beside"), SEEDS, ids=[f"{it[0]}-{it[1].__name__}" for it in SEEDS]
)
def test_a_seeded_fault_is_found_by_its_id(
    scene: Scene, check_id: str, seed: Callable[[Scene], None], beside: tuple[str, ...]
):
    seed(scene)
    found = scene.ids()
    assert check_id in found
    assert set(found) <= {check_id, *beside}


# --- the command ---


def test_the_command_says_that_nothing_is_wrong(operator: Operator):
    assert "nothing is wrong" in operator.run("doctor")
    assert json.loads(operator.run("doctor", "--json"))["findings"] == []


def test_the_command_names_cause_and_cure_and_repairs_what_is_safe(scene: Scene):
    open_key(scene)
    left_lock(scene)
    said = scene.operator.run("doctor", code=1)
    assert f"error    keys.open: {scene.home.admin_key} is open to other users (mode 0644)" in said
    assert f"chmod 600 {scene.home.admin_key}" in said
    assert "1 error, 1 note" in said
    assert scene.home.lock("w-7").exists()
    repaired = scene.operator.run("doctor", "--fix")
    assert "is for its owner alone" in repaired
    assert "nothing is wrong" in repaired
    assert scene.home.admin_key.stat().st_mode & 0o777 == 0o600
    assert not scene.home.lock("w-7").exists()


def test_the_command_needs_no_configuration(tmp_path: Path):
    operator = Operator(tmp_path / "home")
    assert "clusterctl init" in operator.run("doctor", code=1)
    assert not operator.home.path.exists()


def test_a_report_is_for_looking_only(operator: Operator):
    operator.run("doctor", "--report", "--fix", code=2)


# --- repairs and reports of a Mac ---


@pytest.mark.parametrize(
    ("state", "left"), [({}, []), ({"NO_SUDO": "1"}, ["power.sleep", "power.autorestart"])]
)
def test_a_mac_is_kept_awake_where_that_is_allowed(scene: Scene, state: dict[str, str], left: list[str]):
    scene.mac = {"SLEEP": "10", "AUTORESTART": "0", **state}
    faults = [fault for _finding, fault in repair(scene.runner, scene.home, scene.look())]
    assert faults == (["sudo: a password is required"] * 2 if left else ["", ""])
    assert scene.ids() == left


def test_a_report_has_what_was_read_and_no_secret(scene: Scene):
    scene.mac = {"SLEEP": "10", "SECRET": MARK}
    key = scene.operator.run("keys", "create", "somebody").split()
    scene.undo.callback(scene.home.api_keys.unlink)
    secrets = [MARK, scene.home.admin_key.read_text().strip(), *(word for word in key if "sf-" in word)]
    runner = RecordingRunner(scene.runner)
    config = scene.home.config
    facts = read_facts(runner, scene.home, config, os.environ, datetime.now(UTC))
    told = json.dumps(report(facts, examine(facts), runner.calls), default=str)
    assert "exit timeout = 90" in told
    assert "power.sleep" in told
    assert len(secrets) > 2
    assert [secret for secret in secrets if secret in told] == []
