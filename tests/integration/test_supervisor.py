"""The supervisor as a real process over stand-ins: starting, restarting, adopting, ending."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from clusterctl.children import Children
from clusterctl.control import ProcessView, Reply, Request, SupervisorAbsentError, ask
from clusterctl.supervision import Kind, Spec
from protocol.addresses import Home
from protocol.config import ClusterConfig
from tests.integration.cluster import wait_for

pytestmark = pytest.mark.integration

SUPERVISOR = [sys.executable, "-P", "-m", "clusterctl.supervisor_process"]

REPOSITORY = Path(__file__).parents[2]


class Supervised:
    """A supervisor over stand-ins, in a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "home")
        self.home.path.mkdir(mode=0o700)
        self.marks = folder / "marks"
        self.marks.mkdir()
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, *worker_ids: str, drain_s: float = 1.0) -> None:
        text = 'version = 1\n[gateway]\nid = "gw"\nhttp = "127.0.0.1:0"\n'
        text += f"[limits]\ndrain_timeout_s = {drain_s}\n"
        for worker_id in worker_ids:
            text += f'[[workers]]\nid = "{worker_id}"\nmodel = "m"\nengine = "fake"\n'
            text += f"drain_timeout_s = {drain_s}\n"
        self.home.config.write_text(text)

    def start(self, **environ: str) -> None:
        command = [sys.executable, "-m", "tests.integration.standin", "supervisor"]
        self.process = subprocess.Popen(
            [*command, str(self.home.config), str(self.marks)],
            env={
                **os.environ,
                "STUDIOFLEET_HOME": str(self.home.path),
                "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "deploy")]),
                **environ,
            },
            cwd=REPOSITORY,
            start_new_session=True,
        )
        wait_for(self.reply, "the supervisor to answer")

    def reply(self, command: Request | None = None) -> Reply | None:
        try:
            return ask(self.home, command or Request(command="status"))
        except SupervisorAbsentError:
            return None

    def view(self, process_id: str) -> ProcessView | None:
        reply = self.reply()
        return next((p for p in reply.processes if p.id == process_id), None) if reply else None

    def wait_phase(self, process_id: str, phase: str, **also: object) -> ProcessView:
        def found() -> ProcessView | None:
            view = self.view(process_id)
            fits = view is not None and view.phase == phase
            return view if fits and all(getattr(view, k) == v for k, v in also.items()) else None

        view = wait_for(found, f"{process_id} to be {phase} {also}")
        assert isinstance(view, ProcessView)
        return view

    def starts(self, process_id: str) -> list[int]:
        path = self.marks / f"{process_id}.starts"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def down(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.reply(Request(command="down"))
        return self.process.wait(timeout=30)

    def end_all(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for path in self.marks.glob("*.starts"):
            for pid in self.starts(path.stem):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "tests.integration.standin" in psutil.Process(pid).cmdline():
                        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def supervised() -> Iterator[Supervised]:
    folder = Path(tempfile.mkdtemp(prefix="sf-test-"))
    supervised = Supervised(folder)
    try:
        yield supervised
    finally:
        supervised.end_all()
        shutil.rmtree(folder)


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_everything_configured_runs_and_down_leaves_nothing(supervised):
    supervised.configure("steady-1", "steady-2")
    supervised.start()
    pids = [supervised.wait_phase(i, "running", ready=True).pid for i in ("steady-1", "steady-2")]
    assert supervised.down() == 0
    assert not any(running(pid) for pid in pids)
    assert list(supervised.home.run.iterdir()) == []


def test_a_killed_process_is_started_again(supervised):
    supervised.configure("steady-1")
    supervised.start()
    first = supervised.wait_phase("steady-1", "running", ready=True)
    os.kill(first.pid, signal.SIGKILL)
    second = supervised.wait_phase("steady-1", "running", ready=True, restarts=1)
    assert second.pid != first.pid
    assert (second.last_exit, second.last_error) == (-9, "ended by SIGKILL")


def test_a_process_that_ends_on_purpose_stays_down_until_asked_for(supervised):
    supervised.configure("steady-1")
    supervised.start()
    view = supervised.wait_phase("steady-1", "running", ready=True)
    os.kill(view.pid, signal.SIGTERM)
    supervised.wait_phase("steady-1", "stopped", last_exit=0)
    supervised.reply(Request(command="reconcile", retry=True))
    supervised.wait_phase("steady-1", "running", ready=True)


def test_misconfigured_is_parked_at_once_with_its_last_words(supervised):
    supervised.configure("misconfigured-1")
    supervised.start()
    view = supervised.wait_phase("misconfigured-1", "parked")
    assert view.last_error == "this one misconfigured (exit code 78)"
    assert len(supervised.starts("misconfigured-1")) == 1


def test_up_tries_again_what_is_parked(supervised):
    supervised.configure("misconfigured-1")
    supervised.start()
    supervised.wait_phase("misconfigured-1", "parked")
    supervised.reply(Request(command="reconcile", retry=True))
    supervised.wait_phase("misconfigured-1", "parked", starts=2)


def test_who_breaks_five_times_is_parked(supervised):
    supervised.configure("breaks-1")
    supervised.start()
    view = supervised.wait_phase("breaks-1", "parked")
    assert (view.starts, view.last_exit) == (5, 70)
    assert len(supervised.starts("breaks-1")) == 5


@pytest.mark.parametrize("was_ready", [True, False])
def test_a_worker_that_ends_right_after_it_was_ready_was_not_started_in_vain(tmp_path, was_ready):
    """Also when nobody looked meanwhile: its mark tells."""
    home = Home(tmp_path)
    home.run.mkdir()
    home.logs.mkdir()
    does = f"import os, sys; {was_ready} and os.unlink(sys.argv[1]); sys.exit(70)"
    children = Children(
        home,
        home.config,
        os.environ,
        lambda spec, _config: [sys.executable, "-c", does, str(home.attempts(spec.id))],
    )
    pid = children.start(Spec("w", Kind.WORKER, 1.0, ""), ClusterConfig(version=1))
    (ended,) = wait_for(children.reap, "it to end")
    assert (ended.pid, ended.exit_code, ended.was_ready) == (pid, 70, was_ready)
    assert not home.attempts("w").exists()


def test_who_breaks_before_it_can_look_after_its_log_does_not_fill_the_disk(supervised):
    supervised.configure("breaks-1")
    supervised.home.logs.mkdir(mode=0o700)
    log = supervised.home.log("breaks-1")
    with log.open("wb") as file:
        file.truncate(17 << 20)
    supervised.start()
    supervised.wait_phase("breaks-1", "parked")
    assert log.with_name("breaks-1.log.1").stat().st_size == 17 << 20
    assert log.stat().st_size < 100_000


def test_a_changed_file_is_followed_when_asked(supervised):
    supervised.configure("steady-1")
    supervised.start()
    first = supervised.wait_phase("steady-1", "running", ready=True)
    supervised.configure("steady-2")
    supervised.reply(Request(command="reconcile"))
    supervised.wait_phase("steady-2", "running", ready=True)
    wait_for(lambda: supervised.view("steady-1") is None, "the removed worker to be forgotten")
    assert not running(first.pid)


def test_a_file_that_cannot_be_used_is_refused_and_the_old_one_stays_in_force(supervised):
    supervised.configure("steady-1")
    supervised.start()
    supervised.wait_phase("steady-1", "running", ready=True)
    for content in (b"version = 2", b"", b"\xff\xfe", b"x = " + b"[" * 5000, b"x = " + b"9" * 5000):
        supervised.home.config.write_bytes(content)
        assert "cluster.toml" in supervised.reply(Request(command="reconcile")).error
    supervised.home.config.unlink()
    assert "no such file" in supervised.reply(Request(command="reconcile")).error
    assert supervised.view("steady-1").phase == "running"


def test_a_run_folder_that_takes_no_files_ends_nothing_and_no_supervisor(supervised):
    supervised.configure("steady-1")
    (supervised.home.run / "steady-1.pid.new").mkdir(parents=True)  # in the way of the pid file
    supervised.home.run.chmod(0o700)
    supervised.start()
    supervised.wait_phase("steady-1", "running", ready=True)
    os.kill(supervised.view("steady-1").pid, signal.SIGKILL)
    supervised.wait_phase("steady-1", "running", ready=True, restarts=1)
    (supervised.home.run / "steady-1.pid.new").rmdir()


def test_a_changed_entry_of_a_running_process_is_reported_not_applied(supervised):
    supervised.configure("steady-1")
    supervised.start()
    before = supervised.wait_phase("steady-1", "running", ready=True)
    supervised.configure("steady-1", drain_s=2.0)
    supervised.reply(Request(command="reconcile", retry=True))
    after = supervised.view("steady-1")
    assert (after.pid, after.outdated) == (before.pid, True)


def test_who_does_not_end_is_killed(supervised):
    supervised.configure("stubborn-1", drain_s=0.1)
    supervised.start()
    view = supervised.wait_phase("stubborn-1", "running", ready=True)
    assert supervised.down() == 0
    assert not running(view.pid)


def test_killed_it_leaves_the_others_serving_and_the_next_one_adopts_them(supervised):
    supervised.configure("steady-1")
    supervised.start()
    before = supervised.wait_phase("steady-1", "running", ready=True)
    supervised.process.kill()
    supervised.process.wait()
    assert running(before.pid)
    supervised.start()
    after = supervised.wait_phase("steady-1", "running", ready=True)
    assert after.pid == before.pid
    assert supervised.starts("steady-1") == [before.pid]
    os.kill(after.pid, signal.SIGKILL)
    supervised.wait_phase("steady-1", "running", ready=True, restarts=1)
    assert supervised.down() == 0
    assert list(supervised.home.run.iterdir()) == []


def test_an_adopted_process_that_is_no_longer_configured_is_ended(supervised):
    supervised.configure("steady-1")
    supervised.start()
    before = supervised.wait_phase("steady-1", "running", ready=True)
    supervised.process.kill()
    supervised.process.wait()
    supervised.configure()
    supervised.start()
    wait_for(lambda: not running(before.pid), "the adopted process to end")


def test_a_second_supervisor_of_the_home_leaves_the_first_alone(supervised):
    supervised.configure("steady-1")
    supervised.start()
    view = supervised.wait_phase("steady-1", "running", ready=True)
    second = subprocess.run(
        [*SUPERVISOR, "--config", str(supervised.home.config)],
        env={**os.environ, "STUDIOFLEET_HOME": str(supervised.home.path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 0
    assert "another supervisor" in second.stderr
    assert supervised.view("steady-1") == view


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_takes_everything_down(supervised, number):
    supervised.configure("steady-1")
    supervised.start()
    view = supervised.wait_phase("steady-1", "running", ready=True)
    supervised.process.send_signal(number)
    assert supervised.process.wait(timeout=30) == 0
    assert not running(view.pid)
    assert list(supervised.home.run.iterdir()) == []


def test_the_closing_of_the_terminal_is_survived(supervised):
    supervised.configure("steady-1")
    supervised.start()
    view = supervised.wait_phase("steady-1", "running", ready=True)
    supervised.process.send_signal(signal.SIGHUP)
    assert supervised.view("steady-1") == view


def test_nonsense_on_the_control_socket_does_no_harm(supervised):
    supervised.configure("steady-1")
    supervised.start()
    for content in (b"nonsense\n", b'{"command": "unknown"}\n', b"\xff\xfe\n", b""):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(supervised.home.socket("supervisor")))
            client.sendall(content)
    assert supervised.reply() is not None


def test_the_control_socket_is_its_owners_alone(supervised):
    supervised.configure()
    supervised.start()
    assert supervised.home.socket("supervisor").stat().st_mode & 0o777 == 0o600
    assert supervised.home.sockets.stat().st_mode & 0o777 == 0o700


def test_an_idle_supervisor_sleeps(supervised):
    supervised.configure("steady-1")
    supervised.start()
    supervised.wait_phase("steady-1", "running", ready=True)
    supervised.wait_phase("gw", "running", ready=True)
    process = psutil.Process(supervised.process.pid)
    before = process.num_ctx_switches().voluntary
    with pytest.raises(subprocess.TimeoutExpired):
        supervised.process.wait(timeout=2.0)
    assert process.num_ctx_switches().voluntary - before < 60
