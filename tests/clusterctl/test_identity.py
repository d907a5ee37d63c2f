import os
import subprocess
import sys

import pytest

from clusterctl import identity
from clusterctl.identity import identity_of


@pytest.fixture(params=["as on this system", "as on macOS"])
def identify(request):
    return identity_of if request.param == "as on this system" else identity._from_system


def test_a_process_keeps_its_identity_and_another_has_another(identify):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        first = identify(other.pid)
        assert first
        assert first == identify(other.pid)
        assert identify(os.getpid()) != first


def test_a_process_that_has_ended_has_none(identify):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
        assert identify(process.pid) is None
    assert identify(process.pid) is None


def test_no_process_has_a_pid_that_does_not_exist():
    assert [identity_of(pid) for pid in (-1, 2**22 + 1, 2**40)] == [None] * 3


@pytest.mark.skipif(not identity._BOOT.exists(), reason="this system has no /proc")
def test_a_clock_that_is_set_changes_no_identity(monkeypatch):
    """`psutil`'s times are those of the wall clock; one that is set back makes others of them."""
    before = identity_of(os.getpid())
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 0.0)
    assert identity_of(os.getpid()) == before
