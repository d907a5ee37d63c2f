"""This machine in the shape of a Mac: the tools in `mac_tools` answer where macOS would.

They model our understanding of macOS; what passes here is not verified on a Mac.
"""

from __future__ import annotations

import plistlib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from clusterctl.runner import LIMIT_S, Ended, LocalRunner

TOOLS = Path(__file__).parent / "mac_tools"


class MacShaped(LocalRunner):
    """Runs the doubles of what is doubled, and this machine's own programs else."""

    def __init__(self, folder: Path, label: str, state: Mapping[str, str]) -> None:
        """`state` are the variables MAC_… of the doubles, without MAC_."""
        given = {"FOLDER": str(folder), "LABEL": label, **state}
        self._state = [f"MAC_{name}={value}" for name, value in given.items()]
        plist = {"Label": label, "ExitTimeOut": 90, "ThrottleInterval": 10, "ProcessType": "Interactive"}
        (folder / "job.plist").write_bytes(plistlib.dumps(plist))

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", limit_s: float = LIMIT_S) -> Ended:
        double = TOOLS / PurePath(argv[0]).name
        words = [str(double), *argv[1:]] if double.exists() else list(argv)
        return super().run(["env", *self._state, *words], stdin=stdin, limit_s=limit_s)
