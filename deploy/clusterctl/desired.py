"""The configuration as what each machine is to run. Pure."""

from __future__ import annotations

import hashlib

from clusterctl.launching import specs_of, whole_digest
from clusterctl.node_workers import node_config
from clusterctl.planning import Wanted
from protocol.addresses import LOCAL
from protocol.config import ClusterConfig, parse


def wanted_here(config: ClusterConfig) -> Wanted:
    """Of this machine."""
    return Wanted(LOCAL, whole_digest(config), tuple(specs_of(config)))


def wanted_there(config: ClusterConfig, node: str) -> Wanted:
    """Of another one. Raises `RefusedError` when workers there could not reach the gateways."""
    if not config.workers_on(node):
        return Wanted(node, "")
    text = node_config(config, node)
    return Wanted(node, text_digest(text), tuple(specs_of(parse(text))), text)


def text_digest(text: str) -> str:
    """Of the file that a machine was told with; empty for one that has none."""
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""
