"""The commands about other machines: `clusterctl node add|list|remove`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import click

from clusterctl import configfile, host_keys, operations, output
from clusterctl.edits import remove_worker
from clusterctl.node_edits import add_node, remove_node
from clusterctl.node_facts import NodeFacts
from clusterctl.node_helper import install_helper, remove_helper
from clusterctl.node_lock import Held, held_there
from clusterctl.nodes import FOLLOW_S, Node, alone_with, installed_version, place_version, target_of
from clusterctl.operations import OperationError, RefusedError
from clusterctl.options import config_option, json_option, places, reported, taught
from clusterctl.runner import RunnerTimeoutError
from clusterctl.ssh import HostUnreachableError
from clusterctl.wheelhouse import Wheelhouse, read_wheelhouse
from clusterctl.wire_keys import forget_worker
from protocol.addresses import Home
from protocol.config import ClusterConfig, NodeConfig, parse
from protocol.configfile import read_config, read_text

_UNREACHABLE = "6 it cannot be reached"
_AT_ONCE = 16
_RUN_S = 900.0
_PATIENCE_S = 5.0


@click.group(
    "node",
    epilog=taught(
        "clusterctl node add studio-2.local",
        "clusterctl node list",
        "clusterctl node remove studio-2",
    ),
)
def node() -> None:
    """Have workers run on other machines, which are reached with ssh."""


@node.command(
    epilog=taught(
        "clusterctl node add studio-2.local --wheelhouse wheels",
        "clusterctl node add 10.0.0.6 --name studio-3 --user fleet --fingerprint SHA256:…",
        "clusterctl node add studio-4.local --supervisor launchd --ask-sudo",
        refused="another node has the name, the key is not the one, or the machine is not fit",
        also=[_UNREACHABLE],
    )
)
@click.argument("host")
@click.option("--name", help="Of the node.  [default: the first part of HOST]")
@click.option("--user", help="As whom to log in, and to run workers.  [default: as ssh has it]")
@click.option("--port", type=int, help="Of its sshd.  [default: as ssh has it]")
@click.option("--identity", help="The file of a private key.  [default: as ssh has it]")
@click.option("--prefix", help="The folder there for all of it.  [default: /opt/studiofleet]")
@click.option("--memory-budget-mb", type=int, help="For the models there.  [default: as [residency] says]")
@click.option(
    "--wheelhouse",
    "wheels",
    type=click.Path(file_okay=False, path_type=Path),
    help="Made by scripts/wheelhouse.  [default: wheelhouse in STUDIOFLEET_HOME]",
)
@click.option("--python", default="", help="The path of a Python there.  [default: found]")
@click.option(
    "--supervisor",
    type=click.Choice(["process", "launchd"]),
    help="Who starts workers there again.  [default: process, our own supervisor]",
)
@click.option("--ask-sudo", is_flag=True, help="Let sudo there ask for its password: launchd, once.")
@click.option("--fingerprint", help="Of its host key: pin it without a question, or refuse another.")
@config_option
@reported
def add(
    host: str,
    config_file: Path | None,
    wheels: Path | None,
    python: str,
    fingerprint: str | None,
    ask_sudo: bool,
    **given: Any,
) -> None:
    """Take in another machine: pin its host key, and install Studiofleet there.

    Its host key is shown, and pinned when you say that it is the right one. Nothing is downloaded there:
    the wheels come from here. Workers are then added with: clusterctl add-worker --host NAME
    """
    home, path = places(config_file)
    entry = _entry(host, given)
    operations.make_folders(home)
    config = parse(add_node(read_text(path), entry)).node_named(entry["name"])
    wheelhouse = read_wheelhouse(wheels or home.path / "wheelhouse")
    with alone_with(home, config.name, _PATIENCE_S), _pinned(home, config, fingerprint):
        machine = Node(config, home)
        facts = machine.facts(python)
        output.say(f"{config.name}: {facts.words}")
        changed = _install(machine, facts, wheelhouse, read_config(path))
        if config.supervisor == "launchd":
            changed |= install_helper(machine, wheelhouse.version, ask_sudo=ask_sudo)
        changed |= configfile.change_config(path, lambda text: add_node(text, entry))
    if changed:
        click.echo(f"{config.name} is added, with Studiofleet {wheelhouse.version} in {config.prefix}")
    else:
        click.echo(f"unchanged: {config.name} is there already")


def _entry(host: str, given: dict[str, Any]) -> dict[str, Any]:
    entry = {"name": given.pop("name") or host.partition(".")[0], "host": host, **given}
    if entry["identity"]:
        entry["identity"] = str(Path(entry["identity"]).expanduser().absolute())
    return {key: value for key, value in entry.items() if value is not None}


def _install(machine: Node, facts: NodeFacts, wheelhouse: Wheelhouse, config: ClusterConfig) -> bool:
    """False when that version is there, whole, and in use. Raises `RefusedError` and `OperationError`."""
    if facts.current == wheelhouse.version:
        own = str(machine.prefix / "versions" / facts.current / "bin" / "python")
        damage = machine.damage(facts.current, facts.python_for(None) or own)
        if not damage:
            return False
        output.say(f"{machine.name}: {facts.current} is damaged: {damage}")
    elif workers := config.workers_on(machine.name):
        raise RefusedError(
            f"{machine.name} runs {', '.join(w.id for w in workers)} with {facts.current or 'no version'};"
            f" for another version there: clusterctl upgrade {machine.name}"
        )
    place_version(machine, facts, wheelhouse, output.say)
    machine.use(wheelhouse.version)
    return True


@contextlib.contextmanager
def _pinned(home: Home, config: NodeConfig, fingerprint: str | None) -> Iterator[None]:
    """With the machine's host key pinned; one that is new only if all goes well.

    Raises `RefusedError` when it is not the right one.
    """
    if host_keys.pinned(home, config.name) is not None:
        yield
        return
    key = host_keys.learn(home, target_of(config))
    if fingerprint is None:
        output.say(f"{config.name}: the host key of {config.host} has the fingerprint {key.fingerprint}")
        output.say("  the machine itself says it with: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
        if not click.confirm("Is that the right one?", err=True):
            raise RefusedError("its host key was not pinned")
    elif fingerprint != key.fingerprint:
        raise RefusedError(
            f"{config.name}: the host key of {config.host} has the fingerprint {key.fingerprint}, not"
            f" {fingerprint}: it is another machine, or was installed anew"
        )
    host_keys.pin(home, config.name, key)
    try:
        yield
    except BaseException:
        host_keys.pin(home, config.name, None)
        raise


@node.command(
    "list", epilog=taught("clusterctl node list", "clusterctl node list --json", refused="no configuration")
)
@json_option
@config_option
@reported
def list_nodes(as_json: bool, config_file: Path | None) -> None:
    """Show the other machines, each as soon as it answers: what it is, and what is installed there."""
    home, path = places(config_file)
    config = read_config(path)
    found: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = {pool.submit(_look, Node(entry, home)): entry for entry in config.nodes}
        for answer in as_completed(asked):
            entry = asked[answer]
            workers = [worker.id for worker in config.workers_on(entry.name)]
            found[entry.name] = {
                "name": entry.name,
                "host": entry.host,
                **answer.result(),
                "workers": workers,
            }
            if not as_json:
                click.echo(_line(found[entry.name]))
    if as_json:
        output.show_json([found[entry.name] for entry in config.nodes])


def _look(machine: Node) -> dict[str, Any]:
    try:
        facts = machine.facts()
    except (HostUnreachableError, RunnerTimeoutError, OperationError) as error:
        return {"reachable": False, "version": None, "machine": None, "error": str(error)}
    return {"reachable": True, "version": facts.current or None, "machine": facts.words, "error": None}


def _line(found: dict[str, Any]) -> str:
    if not found["reachable"]:
        return f"{found['name']}: not reached: {found['error']}"
    version, workers = found["version"] or "not installed", ", ".join(found["workers"]) or "no worker"
    return f"{found['name']}: {found['machine']}; {version}; {workers}"


@node.command(
    epilog=taught(
        "clusterctl node remove studio-2",
        "clusterctl node remove studio-2 --forget",
        refused="workers are configured on it",
        also=[_UNREACHABLE],
    )
)
@click.argument("name")
@click.option("--purge-models", is_flag=True, help="Remove the models there, too.")
@click.option("--forget", is_flag=True, help="Do nothing there: it is lost. Its workers are removed, too.")
@config_option
@reported
def remove(name: str, purge_models: bool, forget: bool, config_file: Path | None) -> None:
    """Remove everything of ours from another machine, except models, and forget the machine."""
    home, path = places(config_file)
    config = read_config(path)
    entry = next((known for known in config.nodes if known.name == name), None)
    if entry is None:
        host_keys.pin(home, name, None)
        click.echo(f"unchanged: there is no node {name}")
        return
    with alone_with(home, name, _PATIENCE_S):
        workers = [worker.id for worker in config.workers_on(name)]
        machine = Node(entry, home)
        if forget:
            _forget_workers(home, path, workers)
        else:
            _clear(machine, workers, purge_models=purge_models)
        machine.runner.close()
        configfile.change_config(path, lambda text: remove_node(text, name))
        host_keys.pin(home, name, None)
    click.echo(f"{name} is removed")


@node.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=taught(
        "clusterctl node run studio-2 restart qwen3-8b-4bit-1",
        "clusterctl node run studio-2 logs qwen3-8b-4bit-1 --since 10m",
        refused="there is no such node, or nothing is installed there",
        also=[_UNREACHABLE, "otherwise that of the command there"],
    ),
)
@click.argument("name")
@click.argument("command", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@reported
def run(name: str, command: tuple[str, ...]) -> None:
    """Run a command of the clusterctl on another machine, and show what it said when it has ended.

    `status`, `restart` and `logs` know the machine's own workers there. What is changed there in the
    configuration is lost with the next change here.
    """
    home, path = places(None)
    machine = Node(read_config(path).node_named(name), home)
    ended = machine.clusterctl(installed_version(machine), command, _RUN_S)
    click.echo(ended.out, nl=False)
    click.echo(ended.err, nl=False, err=True)
    sys.exit(ended.code)


def _clear(machine: Node, workers: list[str], *, purge_models: bool) -> None:
    if workers:
        raise RefusedError(
            f"{machine.name} has the workers {', '.join(workers)}; remove them first: clusterctl"
            " remove-worker ID; or, if the machine is lost: clusterctl node remove --forget"
        )
    facts = machine.facts()
    if not facts.ours:
        return
    if not facts.current:
        machine.clear(keep_models=not purge_models)
        return
    with held_there(Held(machine, facts.current), _PATIENCE_S):
        ended = machine.clusterctl(facts.current, ["down"], FOLLOW_S)
        if ended.code != 0:
            raise OperationError(f"{machine.name}: clusterctl down failed: {ended.words}")
        if machine.config.supervisor == "launchd":
            remove_helper(machine, facts.current)
        machine.clear(keep_models=not purge_models)


def _forget_workers(home: Home, path: Path, workers: list[str]) -> None:
    for worker_id in workers:
        configfile.change_config(path, partial(remove_worker, worker_id=worker_id))
        forget_worker(home, worker_id)
    operations.follow_config(home, path)
