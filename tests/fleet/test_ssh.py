"""Running programs on another machine, through a real sshd."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from clusterctl.runner import NOT_FOUND, RunnerTimeoutError
from clusterctl.ssh import HostUnreachableError, SshRunner, Target, control_path, known_hosts
from protocol.addresses import Home
from tests.fleet.sshd import Machine, free_port, make_key, needs_sshd, sshd

pytestmark = [pytest.mark.integration, needs_sshd]


def pin(home: Home, machine: Machine) -> None:
    with known_hosts(home).open("a") as file:
        file.write(f"{machine.name} {machine.host_key}\n")


@pytest.fixture
def runner(home: Home, studio: Machine):
    pin(home, studio)
    runner = SshRunner(studio.target, home)
    yield runner
    runner.close()


def test_a_program_gets_its_arguments_as_they_are_and_its_exit_code_passes_through(runner: SshRunner):
    odd = ["a b", "it's", '"$HOME"', "*", "back\\slash", "", "line\nbreak", "é"]
    ended = runner.run(["/bin/sh", "-c", 'printf "%s|" "$@"; echo oh >&2; exit 113', "sh", *odd])
    assert (ended.code, ended.out, ended.err) == (113, "|".join(odd) + "|", "oh\n")


def test_a_program_reads_what_it_is_given_unchanged(runner: SshRunner):
    given = bytes(range(256)) * 4096
    ended = runner.run(["/usr/bin/cksum"], stdin=given)
    here = subprocess.run(["/usr/bin/cksum"], input=given, capture_output=True, check=True)
    assert ended.out == here.stdout.decode()


def test_a_program_finds_nothing_in_its_environment_but_the_path(runner: SshRunner):
    assert runner.run(["/usr/bin/env"]).out == "PATH=/usr/bin:/bin:/usr/sbin:/sbin\n"


def test_a_program_that_is_not_there_is_an_exit_code(runner: SshRunner):
    assert runner.run(["no-such-program"]).code == NOT_FOUND


def test_a_program_that_does_not_end_is_given_up(runner: SshRunner):
    with pytest.raises(RunnerTimeoutError, match=r"studio-1: sleep 60 did not end within 0\.5 s"):
        runner.run(["sleep", "60"], limit_s=0.5)


def test_no_process_list_shows_a_script(runner: SshRunner):
    ended = runner.script('word=$1; ps -ef | grep -c "[o]f-a-script" ; echo "$word"', "an argument")
    assert ended.out.splitlines() == ["0", "an argument"]


def test_one_connection_serves_one_program_after_another(home: Home, studio: Machine):
    pin(home, studio)
    runner = SshRunner(studio.target, home)
    before = studio.log.count("Accepted publickey")
    for _ in range(3):
        assert runner.run(["true"]).code == 0
    assert studio.log.count("Accepted publickey") == before + 1
    assert control_path(home, studio.target).is_socket()
    runner.close()
    assert not control_path(home, studio.target).exists()


def test_a_home_with_a_long_and_odd_name_has_a_short_control_path(tmp_path: Path, studio: Machine):
    home = Home(tmp_path / 'a "long" %h name'.replace('"', "") / ("x" * 80))
    home.keys.mkdir(parents=True, mode=0o700)
    pin(home, studio)
    path = control_path(home, studio.target)
    assert len(os.fsencode(path)) + 17 <= 103
    runner = SshRunner(studio.target, home)
    assert runner.run(["echo", "there"]).out == "there\n"
    assert path.is_socket()
    runner.close()
    path.parent.rmdir()


def test_a_machine_without_a_pinned_host_key_is_not_spoken_to(home: Home, studio: Machine):
    with pytest.raises(HostUnreachableError, match="its host key is not the pinned one"):
        SshRunner(studio.target, home).run(["true"])
    assert not known_hosts(home).exists()


def test_a_machine_with_another_host_key_is_not_spoken_to(home: Home, tmp_path: Path, studio: Machine):
    pin(home, studio)
    folder = tmp_path / "impostor"
    folder.mkdir()
    make_key(folder / "host_key")
    shutil.copy(studio.folder / "authorized_keys", folder)
    with sshd(folder) as port, pytest.raises(HostUnreachableError) as caught:
        SshRunner(replace(studio.target, port=port), home).run(["true"])
    assert "its host key is not the pinned one" in str(caught.value)
    assert f"To try: ssh -p {port} -i {studio.identity} 127.0.0.1" in str(caught.value)


def test_a_user_who_is_not_let_in_is_told_what_to_do(home: Home, tmp_path: Path, studio: Machine):
    pin(home, studio)
    stranger = replace(studio.target, identity=make_key(tmp_path / "stranger"), user="nobody")
    with pytest.raises(HostUnreachableError, match=r"let this user in; .*ssh-copy-id -p \d+ nobody@127"):
        SshRunner(stranger, home).run(["true"])


def test_a_port_at_which_nothing_listens_is_named(home: Home):
    target = Target("studio-9", "127.0.0.1", free_port())
    with pytest.raises(HostUnreachableError, match=r"studio-9 \(127\.0\.0\.1\): nothing listens"):
        SshRunner(target, home).run(["true"])


def test_a_name_that_is_not_known_is_named(home: Home):
    with pytest.raises(HostUnreachableError, match="its name is not known"):
        SshRunner(Target("studio-9", "no-such-host.invalid"), home).run(["true"])


def test_a_connection_that_breaks_is_told_apart_from_a_program_that_fails(home: Home, studio: Machine):
    pin(home, studio)
    runner = SshRunner(studio.target, home)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(
            runner.run, ["/bin/sh", "-c", "echo $PPID >$1; exec sleep 30", "sh", str(home.path / "pid")]
        )
        sessions = wait_for_text(home.path / "pid")
        psutil.Process(int(sessions)).kill()  # the sshd of this connection
        with pytest.raises(HostUnreachableError, match="the connection ended before the program"):
            waiting.result(timeout=40)
    runner.close()


def wait_for_text(path: Path) -> str:
    deadline = time.monotonic() + 20
    while not path.exists() or not path.read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path.read_text()
