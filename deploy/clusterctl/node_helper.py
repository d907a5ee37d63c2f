"""The program that acts for root on a node: put there with the node, and gone with it."""

from __future__ import annotations

from clusterctl.nodes import Node
from clusterctl.operations import OperationError, RefusedError
from clusterctl.options import Exit

_INSTALL = ("helper", "install")


def install_helper(node: Node, version: str, *, ask_sudo: bool) -> bool:
    """Have it there; False when it was. With `ask_sudo`, sudo may ask for its password at this terminal.

    Raises `RefusedError` and `OperationError`.
    """
    ended = node.clusterctl(version, _INSTALL)
    unchanged = ended.out.startswith("unchanged")
    if ended.code == Exit.REFUSED and ask_sudo:
        node.clusterctl_at_terminal(version, _INSTALL)
        ended = node.clusterctl(version, _INSTALL)
    if ended.code != 0:
        refused = ended.code == Exit.REFUSED
        raise (RefusedError if refused else OperationError)(f"{node.name}: {ended.words}")
    return not unchanged


def remove_helper(node: Node, version: str) -> None:
    """Have nothing left of it there, nor of its services. Raises `OperationError`."""
    ended = node.clusterctl(version, ["helper", "remove"])
    if ended.code != 0:
        raise OperationError(f"{node.name}: {ended.words}")
