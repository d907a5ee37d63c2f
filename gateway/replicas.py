"""Replicas answer for one another, so that they must be one model. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from protocol.messages import Hello
from protocol.values import ModelCard


class Known(Protocol):
    """What is looked at of a worker that was taken before."""

    @property
    def connection(self) -> bytes: ...
    @property
    def worker_id(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def card(self) -> ModelCard: ...


def other_model(hello: Hello, known: Iterable[Known]) -> str:
    """Why the worker is no replica of those that have its model's name; empty when it is."""
    for view in known:
        replica = view.connection and view.card.name == hello.card.name and view.worker_id != hello.worker_id
        ours, theirs = hello.card.fingerprint, view.card.fingerprint
        if replica and ours and theirs and ours != theirs:
            return (
                f"worker {hello.worker_id!r} ({_source(hello.node, hello.card)}) and worker"
                f" {view.worker_id!r} ({_source(view.node, view.card)}) serve different models under the"
                f" name {hello.card.name!r}; give one of them another served_name, or both the same files"
            )
    return ""


def _source(node: str, card: ModelCard) -> str:
    return f"{card.model_path} on {node}, fingerprint {(card.fingerprint or '')[:16]}"
