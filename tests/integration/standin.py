"""Stand-ins for the programs that a supervisor starts, and a supervisor that starts them.

`standin supervisor CONFIG MARKS` supervises; `standin MODE-… MARKS` is a process whose id tells what
it does. Each start adds its pid to MARKS/ID.starts; who serves writes its pid to MARKS/ID.up.
"""

import os
import signal
import sys
import time
from pathlib import Path

from clusterctl.supervision import Spec
from clusterctl.supervisor import Supervisor
from protocol.addresses import Home
from protocol.config import ClusterConfig


def supervise(config_file: Path, marks: Path) -> None:
    def command(spec: Spec, _config_file: Path) -> list[str]:
        return [sys.executable, "-P", "-m", "tests.integration.standin", spec.id, str(marks)]

    def ready(_home: Home, _config: ClusterConfig) -> dict[str, int]:
        return {path.stem: int(path.read_text() or 0) for path in marks.glob("*.up")}

    home = Home.from_environment(os.environ)
    Supervisor(home, config_file, os.environ, command=command, readiness=ready).run()


def abandon(marks: Path) -> None:
    """Leave a grandchild in a session of its own, that ends once MARKS/end is there."""
    if child := os.fork():
        os.waitpid(child, 0)
    elif os.fork():
        os._exit(0)
    else:
        os.setsid()
        (marks / "orphan").touch()
        while not (marks / "end").exists():
            time.sleep(0.02)
        (marks / "orphan").unlink()
        os._exit(0)


def stand_in(process_id: str, marks: Path) -> None:
    mode = process_id.partition("-")[0]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with (marks / f"{process_id}.starts").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if mode in ("misconfigured", "breaks"):
        sys.stderr.write(f"this one {mode}\n")
        sys.exit(78 if mode == "misconfigured" else 70)
    if mode == "abandons":
        abandon(marks)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    up = marks / f"{process_id}.up"
    up.with_suffix(".new").write_text(str(os.getpid()))
    up.with_suffix(".new").rename(up)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    if sys.argv[1] == "supervisor":
        supervise(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        stand_in(sys.argv[1], Path(sys.argv[2]))
