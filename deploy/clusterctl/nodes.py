"""What is done on another machine: ask for its facts, install, run its own clusterctl, clear it away."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath

from clusterctl import node_side
from clusterctl.memory_fit import size
from clusterctl.node_facts import ASK, FactsError, NodeFacts, read_facts, refusal
from clusterctl.operations import OperationError, RefusedError, Say
from clusterctl.runner import Ended
from clusterctl.ssh import SshRunner, Target
from clusterctl.wheelhouse import Wheelhouse
from protocol.addresses import Home
from protocol.config import NodeConfig
from protocol.locks import locked

_FACTS_S = 30.0
_INSTALL_S = 1800.0
FOLLOW_S = 600.0
"""For `up` and `down` there: launchd gives a worker up to 300 s to finish, and they wait for it."""
_LOADER = "import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[1])), 'node_side', 'exec'))"
_USE = """
import os, sys
os.chdir(sys.argv[1])
try:
    os.unlink(".current")
except FileNotFoundError:
    pass
os.symlink("versions/" + sys.argv[2], ".current")
os.replace(".current", "current")
"""
_CLEAR = r"""
set -e
cd "$1"
[ -e etc/studiofleet-node ] || { echo "$1 is no folder of Studiofleet's; nothing was removed" >&2; exit 1; }
rm -rf versions current .current state log home
[ "$2" = keep ] || rm -rf models
rmdir models 2>/dev/null || true
rm -rf etc
cd /
rmdir "$1" 2>/dev/null || true
"""
"""The file that says whose the folder is goes last, so that what was cut off can be done again."""

_PRUNE = r"""
set -e
versions=$1/versions
shift
running=$(ps -axww -o command=)
for version; do
    case $running in *"$versions/$version/"*) continue ;; esac
    rm -rf "${versions:?}/$version"
    echo "$version"
done
"""


def target_of(node: NodeConfig) -> Target:
    """Where to log in."""
    identity = Path(node.identity).expanduser() if node.identity else None
    return Target(node.name, node.host, node.port, node.user, identity)


class Node:
    """One machine. All methods raise `HostUnreachableError` and `RunnerTimeoutError`."""

    def __init__(self, config: NodeConfig, home: Home) -> None:
        self.config = config
        self.name = config.name
        self.prefix = PurePosixPath(config.prefix)
        self.runner = SshRunner(target_of(config), home)

    @property
    def config_file(self) -> PurePosixPath:
        """What the machine knows of the cluster."""
        return self.prefix / "etc" / "cluster.toml"

    def facts(self, python: str = "") -> NodeFacts:
        """In one round trip. Raises `OperationError`."""
        ended = self.runner.script(ASK, str(self.prefix), python, limit_s=_FACTS_S)
        try:
            return read_facts(ended.out)
        except FactsError as error:
            raise OperationError(f"{self.name}: {error} {ended.err.strip()[-200:]}") from error

    def place(self, wheelhouse: Wheelhouse, python: str) -> None:
        """Have that version there, whole; what is used stays. Raises `OperationError`."""
        ended = self._side(python, wheelhouse.version, wheelhouse.digest, wheelhouse.packed())
        if ended.code != 0:
            raise OperationError(f"{self.name}: the installation failed: {ended.words}")

    def damage(self, version: str, python: str) -> str:
        """What is wrong with a version that is installed; empty where it is whole."""
        ended = self._side(python, version)
        return ended.words if ended.code else ""

    def _side(self, python: str, version: str, digest: str = "", wheels: bytes = b"") -> Ended:
        program = Path(node_side.__file__).read_bytes()
        words = [str(len(program)), str(self.prefix), version, digest]
        stdin = program + wheels
        return self.runner.run([python, "-I", "-c", _LOADER, *words], stdin=stdin, limit_s=_INSTALL_S)

    def use(self, version: str) -> None:
        """Have a version that is there be the one that is used; what runs stays. Raises `OperationError`."""
        python = str(self.prefix / "versions" / version / "bin" / "python")
        ended = self.runner.run([python, "-I", "-c", _USE, str(self.prefix), version])
        if ended.code != 0:
            raise OperationError(f"{self.name}: {version} cannot be used: {ended.words}")

    def prune(self, versions: Sequence[str]) -> list[str]:
        """Remove those that no process there runs from; which they were. Raises `OperationError`."""
        ended = self.runner.script(_PRUNE, str(self.prefix), *versions)
        if ended.code != 0:
            raise OperationError(f"{self.name}: older versions cannot be removed: {ended.words}")
        return ended.out.split()

    def clusterctl(self, version: str, arguments: Sequence[str], limit_s: float = 120.0) -> Ended:
        """Run the machine's own clusterctl, of an installed version."""
        return self.runner.run(self._clusterctl(version, arguments), limit_s=limit_s)

    def clusterctl_at_terminal(self, version: str, arguments: Sequence[str]) -> int:
        """The same at this terminal, where it can ask for a password; its exit code."""
        return self.runner.at_terminal(self._clusterctl(version, arguments))

    def _clusterctl(self, version: str, arguments: Sequence[str]) -> list[str]:
        environ = {
            "HOME": self.prefix / "home",
            "STUDIOFLEET_HOME": self.prefix / "state",
            "STUDIOFLEET_MODELS": self.prefix / "models",
        }
        command = [str(self.prefix / "versions" / version / "bin" / "python"), "-P", "-m", "clusterctl.cli"]
        words = [f"{key}={value}" for key, value in environ.items()]
        return ["/usr/bin/env", *words, *command, *arguments]

    def clear(self, *, keep_models: bool) -> None:
        """Remove everything of ours that no process uses any more. Raises `OperationError`."""
        ended = self.runner.script(_CLEAR, str(self.prefix), "keep" if keep_models else "")
        if ended.code != 0:
            raise OperationError(f"{self.name}: {ended.words}")


def alone_with(home: Home, name: str, patience_s: float) -> AbstractContextManager[None]:
    """One command at a time changes a node. Raises `LockHeldError`."""
    return locked(home.run / f"node-{name}.lock", patience_s)


def place_version(node: Node, facts: NodeFacts, wheelhouse: Wheelhouse, say: Say) -> None:
    """Have the version of the wheels there. Raises `RefusedError` if it cannot be, and `OperationError`."""
    if why := refusal(facts, node.config.prefix, wheelhouse.python):
        raise RefusedError(f"{node.name}: {why}")
    say(f"{node.name}: {wheelhouse.version}, {size(wheelhouse.sent_bytes)}, is being sent and installed")
    node.place(wheelhouse, facts.python_for(wheelhouse.python) or "")


def installed_version(node: Node) -> str:
    """The one that is used there. Raises `RefusedError` when nothing is installed."""
    link = node.runner.run(["readlink", str(node.prefix / "current")], limit_s=_FACTS_S)
    if version := link.out.strip().removeprefix("versions/"):
        return version
    raise RefusedError(f"Studiofleet is not installed on {node.name}; run: clusterctl node add, as before")
