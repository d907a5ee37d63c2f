"""Where a model is copied to: the models folder of a node, or a folder of this machine."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from clusterctl.model_push import push
from clusterctl.model_store import models_here
from clusterctl.nodes import Node
from clusterctl.options import places
from clusterctl.runner import LocalRunner, Runner
from protocol.configfile import read_config


def push_to(folder: Path, target: str, config_file: Path | None) -> tuple[bool, str]:
    """Whether anything was to be done, and where the model is now. Raises what `push` does."""
    runner: Runner = LocalRunner()
    if "/" in target:
        models = PurePosixPath(Path(target).expanduser().absolute())
        where = ""
    else:
        home, path = places(config_file)
        node = Node(read_config(path).node_named(target), home)
        runner, models, where = node.runner, node.prefix / "models", f"{target}:"
    here = models_here()
    name = folder.relative_to(here) if folder.is_relative_to(here) else Path(folder.name)
    return push(folder, models / name, runner), f"{where}{models / name}"
