"""What is asked of another machine before a worker is placed there. At most a model is copied by it."""

from __future__ import annotations

import time
from pathlib import PurePosixPath

from clusterctl.adding import memory_steps, step
from clusterctl.memory_fit import size
from clusterctl.model_manifest import model_bytes
from clusterctl.model_push import push
from clusterctl.model_sizes import ENGINES
from clusterctl.model_store import models_here
from clusterctl.node_facts import LEAST_FREE_TO_RUN_GIB, NodeFacts
from clusterctl.node_workers import dialled
from clusterctl.nodes import Node
from clusterctl.operations import RefusedError, Say
from clusterctl.options import Exit
from clusterctl.runner import Ended
from clusterctl.transfers import span
from protocol.addresses import is_loopback, tcp_host
from protocol.config import EMBEDDED, ClusterConfig, WorkerConfig
from protocol.models import find_model, is_hub_id
from protocol.reachability import Reach

_UNKNOWN_COMMAND = 2
"""The exit code of an older version there, which knows no such check."""
_WHOLE = "whole"
_PROBE = """
import sys
import clusterctl, protocol.config, worker.server
print(sys.argv[1], flush=True)
if sys.argv[2] == "mlx":
    import mlx.core as mx
    mx.eval(mx.ones(8) + 1)
    print(mx.default_device())
"""
"""What is installed there can be imported, and MLX computes."""
_DIAL = """
import errno, socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5).close()
except TimeoutError:
    sys.exit("ETIMEDOUT")
except OSError as error:
    sys.exit(errno.errorcode.get(error.errno, str(error)))
"""
"""Names are the same on all systems, numbers are not."""


def refuse_unfit(
    node: Node, version: str, config: ClusterConfig, worker_id: str, say: Say, *, force_memory: bool = False
) -> None:
    """Raises `RefusedError` where a worker of the configuration could not run, and tells what it looked at.

    `force_memory`: whether or not it fits into the machine's memory. Raises `OperationError` for a machine
    that does not answer as one does.
    """
    worker = config.worker_named(worker_id)
    _refuse_machine(node, node.facts(), say)
    _refuse_broken_version(node, version, worker, say)
    _refuse_no_model(node, version, worker, say)
    if not force_memory:
        _refuse_no_room(node, version, worker, say)
    for gateway in config.all_gateways:
        _refuse_no_way(node, version, dialled(gateway))
    gateways = ", ".join(gateway.id for gateway in config.all_gateways)
    say(step("gateways", f"{gateways}: reached from there"))


def _refuse_machine(node: Node, facts: NodeFacts, say: Say) -> None:
    if facts.free_gib is not None and facts.free_gib < LEAST_FREE_TO_RUN_GIB:
        raise RefusedError(
            f"the disk of {node.name} is full: {node.prefix} has {facts.free_gib:.1f} GiB free, and"
            f" {LEAST_FREE_TO_RUN_GIB:.0f} are needed; make room there"
        )
    say(step("machine", facts.words))
    if facts.power_words:
        say(step("power", facts.power_words))
    for why in facts.cautions:
        say(step("warning", why))


def _refuse_broken_version(node: Node, version: str, worker: WorkerConfig, say: Say) -> None:
    computes = worker.engine in ENGINES
    python = str(node.prefix / "versions" / version / "bin" / "python")
    ended = node.runner.run([python, "-P", "-c", _PROBE, _WHOLE, "mlx" if computes else "none"])
    said = ended.out.split("\n")
    if said[0] != _WHOLE:
        raise RefusedError(
            f"{version} is damaged on {node.name}: {ended.words}; to put it right: clusterctl node add, as"
            " before"
        )
    if ended.code != 0:
        raise RefusedError(
            f"MLX computes nothing on {node.name}: {ended.words}; what else is wrong there: clusterctl node"
            f" run {node.name} doctor"
        )
    say(step("runtime", "whole" + (f", MLX computes on {said[1]}" if computes else "")))


def _refuse_no_model(node: Node, version: str, worker: WorkerConfig, say: Say) -> None:
    pulled = worker.engine in ENGINES and is_hub_id(worker.model)
    folder = str(node.prefix / "models" / worker.model) if pulled else worker.model
    by_hand = f"clusterctl model push {worker.model} {node.name}"
    arrived = "its files are there"
    if folder.startswith("/") and node.runner.run(["test", "-d", folder]).code != 0:
        if not pulled:
            raise RefusedError(f"there is no folder {folder} on {node.name}; copy the model there: {by_hand}")
        arrived = _copied(worker.model, PurePosixPath(folder), node)
    if worker.engine not in ENGINES or worker.model == EMBEDDED:
        return
    ended = node.clusterctl(version, ["model", "verify", "--quick", worker.model])
    if ended.code not in (Exit.DONE, _UNKNOWN_COMMAND):
        raise RefusedError(f"on {node.name}: {_unlabelled(ended)}; copy it there anew: {by_hand}")
    say(step("model", f"{arrived}, and whole"))


def _copied(model: str, folder: PurePosixPath, node: Node) -> str:
    """Says how the copy of a model went that is here, and not there. Raises what `push` does."""
    try:
        source = find_model(model, models_here())
    except ValueError as error:
        raise RefusedError(
            f"there is no folder {folder} on {node.name}, nor can it be copied from here: {error}"
        ) from error
    begun = time.monotonic()
    push(source, folder, node.runner)
    return f"{size(model_bytes(source))}, copied from here in {span(time.monotonic() - begun)}"


def _refuse_no_room(node: Node, version: str, worker: WorkerConfig, say: Say) -> None:
    """Asks the machine's own clusterctl, which knows its memory and its workers."""
    if worker.engine not in ENGINES:
        return
    words = ["--model", worker.model, "--engine", worker.engine, "--max-num-seqs", str(worker.slots)]
    words += ["--prefix-cache-mb", str(worker.prefix_cache_mb)]
    for option, value in (("--max-model-len", worker.max_model_len), ("--kv-tokens", worker.kv_tokens)):
        words += [] if value is None else [option, str(value)]
    if node.runner.run(["test", "-f", str(node.config_file)]).code == 0:
        words += ["--config", str(node.config_file)]
    ended = node.clusterctl(version, ["model", "fit", *words])
    if ended.code == Exit.REFUSED and ended.out:
        raise RefusedError(
            f"{worker.id} does not fit into the memory of {node.name} (--force-memory goes on):\n"
            f"{ended.out.strip()}"
        )
    if ended.code not in (Exit.DONE, _UNKNOWN_COMMAND):
        raise RefusedError(
            f"whether {worker.id} fits into the memory of {node.name} is not known (--force-memory goes on):"
            f" {_unlabelled(ended)}"
        )
    for line in memory_steps(ended.out.splitlines(), "new worker"):
        say(line)


def _refuse_no_way(node: Node, version: str, listen: str) -> None:
    """What a program that came by ssh reaches says little on a Mac: it may more than a service."""
    host, port = tcp_host(listen).strip("[]"), listen.rpartition(":")[2]
    if is_loopback(host) and not is_loopback(node.config.host):
        raise RefusedError(
            f"{listen} of the gateway is an address of {node.name} itself there; write another"
        )
    python = str(node.prefix / "versions" / version / "bin" / "python")
    ended = node.runner.run([python, "-I", "-c", _DIAL, host, port])
    if ended.code != 0:
        why = Reach(node.name, listen, ended.words).words
        raise RefusedError(f"{node.name} does not reach {listen}: {ended.words}; {why}")


def _unlabelled(ended: Ended) -> str:
    """Without the word by which that machine's clusterctl begins what it says of a fault."""
    return ended.words.removeprefix("refused: ").removeprefix("failed: ")
