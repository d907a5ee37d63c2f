"""Machines that join and leave, through real sshds: what is there, what is refused, what is left."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import psutil
import pytest

from clusterctl.ssh import known_hosts
from protocol.wire_keys import read_allowed
from tests.fleet.installed import prefix_of
from tests.fleet.operators import listen_to_others
from tests.fleet.sshd import Machine, free_port, machine, needs_sshd
from tests.fleet.watching import processes_of, watching_processes
from tests.fleet.wheels import make_wheelhouse
from tests.integration.cluster import wait_for
from tests.integration.operating import Operator, operating

pytestmark = [pytest.mark.integration, needs_sshd, pytest.mark.timeout(600)]

PAGE = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()
COMMANDS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0].splitlines()
"""Of the page docs/fleet.md, all typed by the first test."""
WORKER = "qwen3-8b-4bit-1"
PYTHON = f"{sys.base_prefix}/bin/python3.{sys.version_info[1]}"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fleet-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def wheelhouse(folder: Path) -> Path:
    return make_wheelhouse(folder / "wheels")


@pytest.fixture(scope="module")
def studio(folder: Path) -> Iterator[Machine]:
    with machine("studio-1", folder / "studio-1") as it:
        yield it


@pytest.fixture
def operator() -> Iterator[Operator]:
    """With a gateway that takes workers of other machines."""
    with operating() as operator:
        operator.run("init", "--workers", "0", "--http", "127.0.0.1:0")
        listen_to_others(operator)
        yield operator


def add_words(studio: Machine) -> list[str]:
    where = [
        "--port",
        str(studio.port),
        "--identity",
        str(studio.identity),
        "--prefix",
        str(prefix_of(studio)),
    ]
    return ["node", "add", "127.0.0.1", "--name", studio.name, *where, "--python", PYTHON]


def put_node(operator: Operator, name: str, port: int, **more: str) -> None:
    """As a hand would write it."""
    with operator.home.config.open("a") as file:
        file.write(f'\n[[nodes]]\nname = "{name}"\nhost = "127.0.0.1"\nport = {port}\n')
        file.writelines(f'{key} = "{value}"\n' for key, value in more.items())


def typed(command: str, studio: Machine, wheelhouse: Path) -> list[str]:
    """A command of the page, for a machine of the tests and a model that needs no files."""
    program, *words = shlex.split(command)
    assert program == "clusterctl"
    swaps = {
        "studio-2.local": add_words(studio)[2:],
        "studio-2": [studio.name],
        "wheels": [str(wheelhouse)],
        "/models/Qwen3-8B-4bit": ["fake-model", "--engine", "fake", "--id", "qwen3-8b-4bit-1"],
    }
    return [swapped for word in words for swapped in swaps.get(word, [word])]


def test_a_machine_joins_serves_and_leaves_nothing_behind(
    operator: Operator, studio: Machine, wheelhouse: Path
):
    add, look, add_worker, run, remove_worker, remove = (typed(c, studio, wheelhouse) for c in COMMANDS)
    prefix = prefix_of(studio)
    leave_an_installation_that_was_cut_off(prefix)
    said = operator.run(*add, "--fingerprint", studio.fingerprint, limit_s=240)
    assert re.search(r"studio-1 is added, with Studiofleet 0\.\d+\.\d+-[0-9a-f]{8} in ", said)
    assert known_hosts(operator.home).read_text() == f"studio-1 {studio.host_key}\n"
    assert "unchanged: studio-1" in operator.run(*add)
    assert [path.name[0] for path in (prefix / "versions").iterdir()] == ["0"]
    doctor = ("node", "run", "studio-1", "doctor")
    assert "nothing is wrong" in operator.run(*doctor)  # it was told nothing yet
    before = operator.home.config.read_text()

    assert "does not reach tcp://127.0.0.1" in operator.run(*add_worker[:-1], code=3)
    operator.run("up")
    in_the_way = prefix / "etc" / "cluster.toml.new"
    in_the_way.mkdir()
    assert "its file failed" in operator.run(*add_worker, code=1)
    assert read_allowed(operator.home).keys == {}
    assert list((prefix / "etc" / "keys" / "wire").glob("*.key")) == []
    assert operator.home.config.read_text() == before
    in_the_way.rmdir()
    with watching_processes() as seen:
        said = operator.run(*add_worker, limit_s=240)
    assert "node      studio-1 (127.0.0.1), Studiofleet 0." in said
    assert "gateways  gw-1: reached from there\nkey       made there, and allowed here\nservice   " in said
    assert "qwen3-8b-4bit-1 is added (fake-model); it is serving on studio-1" in said
    assert operator.answers()
    assert operator.worker(WORKER)["node"] == "studio-1"
    assert f"unchanged: {WORKER}" in operator.run(*add_worker)
    assert f"node run studio-1 restart {WORKER}" in operator.run("restart", WORKER, code=3)
    pids = [operator.worker(WORKER)["pid"]]
    operator.run(*run)
    wait_for(lambda: operator.worker(WORKER)["pid"] not in (*pids, None), "it to be started anew there")
    operator.wait_state(WORKER, "ready")
    pids.append(operator.worker(WORKER)["pid"])
    psutil.Process(pids[-1]).kill()
    wait_for(lambda: operator.worker(WORKER)["pid"] not in (*pids, None), "it to be started again there")
    assert WORKER in operator.run("node", "run", "studio-1", "logs", WORKER)
    assert str(prefix / "state") in operator.run("node", "run", "studio-1", "boot", "show", "--daemon")
    assert "nothing is wrong" in operator.run(*doctor)
    assert "nothing is wrong" in operator.run("doctor")

    key = prefix / "etc" / "keys" / "wire" / f"{WORKER}.key"
    secret = key.read_text().strip()
    assert stat.S_IMODE(key.stat().st_mode) == 0o400
    assert read_allowed(operator.home).keys.keys() == {WORKER}
    assert any("add-worker" in text for text in seen)  # so we did look
    assert not any(secret in text for text in seen)
    for place in (operator.home.path, prefix):
        files = [path for path in place.rglob("*") if path.is_file() and path.resolve() != key]
        assert not any(secret.encode() in path.read_bytes() for path in files)
    told = (prefix / "etc" / "cluster.toml").read_text()
    assert "tcp://127.0.0.1" in told
    assert "nodes" not in told

    listed = msgspec.json.decode(operator.run(*look, "--json"))
    assert [(n["name"], n["reachable"], n["workers"]) for n in listed] == [("studio-1", True, [WORKER])]
    assert f"has the workers {WORKER}; remove them first" in operator.run(*remove, code=3)

    operator.run(*remove_worker, limit_s=240)
    assert "nothing is wrong" in operator.run(*doctor)
    assert not key.exists()
    assert read_allowed(operator.home).keys == {}
    assert operator.home.config.read_text().rstrip() == before.rstrip()
    (prefix / "models" / "mine").mkdir()
    assert operator.run(*remove) == "studio-1 is removed\n"
    assert sorted(path.name for path in prefix.iterdir()) == ["models"]
    shutil.rmtree(prefix)
    assert known_hosts(operator.home).read_text() == ""
    assert "unchanged" in operator.run(*remove)
    wait_for(lambda: not processes_of(prefix), "all processes there to have ended")


def leave_an_installation_that_was_cut_off(prefix: Path) -> None:
    (prefix / "etc").mkdir(parents=True)
    (prefix / "etc" / "studiofleet-node").touch()
    (prefix / "versions" / ".new-1" / "wheels").mkdir(parents=True)


def test_a_machine_with_another_host_key_is_not_taken_in(
    operator: Operator, studio: Machine, wheelhouse: Path
):
    before = operator.home.config.read_text()
    said = operator.run(
        *add_words(studio), "--wheelhouse", str(wheelhouse), "--fingerprint", "SHA256:other", code=3
    )
    assert f"has the fingerprint {studio.fingerprint}, not SHA256:other" in said
    said = operator.run(
        *add_words(studio), "--wheelhouse", str(wheelhouse), code=1
    )  # nobody answers the question
    assert f"has the fingerprint {studio.fingerprint}" in said
    assert operator.home.config.read_text() == before
    assert not known_hosts(operator.home).exists()
    assert not prefix_of(studio).exists()


def test_a_folder_that_is_not_ours_is_left_alone(operator: Operator, studio: Machine, wheelhouse: Path):
    theirs = studio.folder / "prefix" / "theirs"
    theirs.mkdir(parents=True)
    said = operator.run(
        *add_words(studio), "--wheelhouse", str(wheelhouse), "--fingerprint", studio.fingerprint, code=3
    )
    assert "has other things in it; give another folder" in said
    assert known_hosts(operator.home).read_text() == ""
    put_node(operator, "studio-1", studio.port, identity=str(studio.identity), prefix=str(prefix_of(studio)))
    known_hosts(operator.home).write_text(f"studio-1 {studio.host_key}\n")
    operator.run("node", "remove", "studio-1")
    assert theirs.is_dir()
    shutil.rmtree(theirs.parent)


def test_a_worker_is_refused_where_it_could_not_run(operator: Operator, studio: Machine):
    worker = [
        "add-worker",
        "--model",
        "fake-model",
        "--engine",
        "fake",
        "--host",
        "studio-1",
        "--id",
        "far-1",
    ]
    assert "no node has the name 'studio-1'" in operator.run(*worker, code=3)
    put_node(operator, "studio-1", studio.port, identity=str(studio.identity), prefix=str(prefix_of(studio)))
    assert "its host key is not the pinned one" in operator.run(*worker, code=6)
    known_hosts(operator.home).write_text(f"studio-1 {studio.host_key}\n")
    known_hosts(operator.home).chmod(0o600)
    assert "Studiofleet is not installed on studio-1" in operator.run(*worker, code=3)
    text = operator.home.config.read_text()
    operator.home.config.write_text(re.sub(r'"ipc", "tcp://[^"]*"', '"ipc"', text))
    assert "takes no workers of other machines" in operator.run(*worker, code=3)
    assert "far-1" not in operator.home.config.read_text()
    assert read_allowed(operator.home).keys == {}


def test_a_machine_in_a_black_hole_holds_up_no_other(operator: Operator, folder: Path):
    with ExitStack() as stack:
        silent = stack.enter_context(socket.socket())
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        put_node(operator, "studio-9", silent.getsockname()[1])
        pinned = []
        for name in ("studio-2", "studio-3"):
            there = stack.enter_context(machine(name, folder / name))
            put_node(operator, name, there.port, identity=str(there.identity), prefix=str(prefix_of(there)))
            pinned.append(f"{name} {there.host_key}\n")
        known_hosts(operator.home).write_text("".join(pinned))
        lines, arrived = [], []
        with operator.begin("node", "list") as listing:
            assert listing.stdout is not None
            for line in listing.stdout:
                lines.append(line)
                arrived.append(time.monotonic())
        assert listing.returncode == 0
    assert sorted(line.partition(":")[0] for line in lines[:2]) == ["studio-2", "studio-3"]
    assert "studio-9: not reached: " in lines[2]
    assert arrived[2] - arrived[1] > 2  # the others did not wait for it


def test_a_lost_machine_is_forgotten_with_its_workers(operator: Operator):
    put_node(operator, "studio-9", free_port())
    with operator.home.config.open("a") as file:
        file.write('\n[[workers]]\nid = "far-9"\nmodel = "m"\nengine = "fake"\nnode = "studio-9"\n')
    operator.run("worker-key", "allow", "far-9", "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7")
    assert "nothing listens at that port" in operator.run("remove-worker", "far-9", code=6)
    assert "far-9: studio-9 (127.0.0.1): nothing listens at that port" in operator.run("status")
    assert operator.run("node", "remove", "studio-9", "--forget") == "studio-9 is removed\n"
    text = operator.home.config.read_text()
    assert "far-9" not in text
    assert "studio-9" not in text
    assert read_allowed(operator.home).keys == {}
