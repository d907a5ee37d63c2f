"""What machines say of their memory. The Mac's answers are synthetic, after published captures."""

from __future__ import annotations

import sys

import pytest

from clusterctl.machine_memory import read_machine
from clusterctl.runner import Ended, LocalRunner
from tests.clusterctl.recorded import RecordedRunner


class Asked(RecordedRunner):
    """Knows programs by their first words: what is run to ask Metal is long."""

    def run(self, argv, *, stdin=b"", limit_s=60.0):
        return super().run(argv[:3] if argv[0] == "sysctl" else argv[:1])


@pytest.mark.parametrize(
    ("wired", "metal", "expected"),
    [
        (Ended(0, "0\n"), Ended(0, "recommended 115448725504\n"), (115448725504, None)),
        (Ended(0, "122880\n"), Ended(0, "recommended 0\n"), (None, 122880 << 20)),
        (Ended(1, err="unknown oid"), Ended(1, err="no module named mlx"), (None, None)),
    ],
)
def test_a_mac(wired, metal, expected):
    runner = Asked(
        {
            ("sysctl", "-n", "hw.memsize"): Ended(0, "137438953472\n"),
            ("sysctl", "-n", "iogpu.wired_limit_mb"): wired,
            ("python",): metal,
        }
    )
    machine = read_machine(runner, "python")
    assert machine is not None
    assert machine.memory == 128 << 30
    assert (machine.recommended, machine.wired_limit) == expected


def test_a_machine_with_linux():
    runner = Asked(
        {("sysctl", "-n", "hw.memsize"): Ended(1), ("cat",): Ended(0, "MemTotal:  1024 kB\nMemFree: 1 kB\n")}
    )
    machine = read_machine(runner, "python")
    assert machine is not None
    assert (machine.memory, machine.recommended, machine.wired_limit) == (1 << 20, None, None)


def test_a_machine_that_does_not_tell():
    assert (
        read_machine(Asked({("sysctl", "-n", "hw.memsize"): Ended(127), ("cat",): Ended(1)}), "python")
        is None
    )


def test_this_machine():
    machine = read_machine(LocalRunner(), sys.executable)
    assert machine is not None
    assert machine.ceiling > 1 << 28
