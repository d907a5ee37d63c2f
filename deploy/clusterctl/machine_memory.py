"""What a machine says of its memory, read over a runner."""

from __future__ import annotations

import re

from clusterctl.memory_fit import Machine
from clusterctl.runner import Runner

_LIMIT_S = 30.0
_ASKS_METAL = """
import mlx.core as mx
print("recommended", mx.device_info().get("max_recommended_working_set_size", 0))
"""


def read_machine(runner: Runner, python: str) -> Machine | None:
    """`python`: one with MLX there, which alone can ask Metal. None when it does not tell its memory."""
    if (memory := _sysctl(runner, "hw.memsize")) is not None:
        said = runner.run([python, "-P", "-c", _ASKS_METAL], limit_s=_LIMIT_S)
        found = re.search(r"^recommended (\d+)$", said.out, re.MULTILINE)
        wired = _sysctl(runner, "iogpu.wired_limit_mb")
        return Machine(
            runner.name, memory, int(found[1]) or None if found else None, (wired or 0) << 20 or None
        )
    total = re.search(r"^MemTotal:\s+(\d+) kB", runner.run(["cat", "/proc/meminfo"]).out, re.MULTILINE)
    return Machine(runner.name, int(total[1]) << 10) if total else None


def _sysctl(runner: Runner, name: str) -> int | None:
    ended = runner.run(["sysctl", "-n", name])
    said = ended.out.strip()
    return int(said) if ended.code == 0 and said.isdigit() else None
