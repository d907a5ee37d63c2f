"""Requests that begin alike go to the same workers, whose caches know that beginning. Pure.

Rendezvous hashing (Thaler and Ravishankar 1998, weighted by slots): every gateway finds the same
order of workers for a key, without shared state; a worker that comes or goes moves only its own keys.
The first two of that order share what a key brings, so that no beginning overwhelms one worker.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gateway.registry import WorkerView
from protocol.messages import Generate, Work
from protocol.values import ChatMessage

HEAD_BYTES = 1024
"""About 256 tokens: what is shared by shorter prompts is cheaper to compute than to look for."""
_BESIDE_S = 0.25
"""A conversation leaves its worker for the other one that may know it when that computes so much less."""
_PATIENCE = 2.0
"""Times what computing would take: elsewhere it takes a neighbour's time and cache, too. Simulated."""
LONGEST_PATIENCE_S = 5.0
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Beginning:
    """By what a request finds the workers that may know how its prompt begins."""

    key: bytes
    second: bool = False
    """Of the first two, its conversation keeps to the second."""
    tokens: int = 0
    """Of the whole prompt, estimated."""


def beginning_of(request: Work, size: int) -> Beginning | None:
    """None for short prompts, and where nothing is kept of them. `size`: bytes of the prompt."""
    if not isinstance(request, Generate):
        return None
    key = key_of(request)
    return None if key is None else Beginning(key, _is_odd(request), size // _BYTES_PER_TOKEN)


def key_of(request: Generate) -> bytes | None:
    """Of a request's beginning, or of what the client names instead; None for short prompts."""
    digest = hashlib.blake2b(f"{request.model}\0{request.tenant}".encode(), digest_size=16)
    if request.cache_key:
        digest.update(b"\0named\0" + request.cache_key.encode(errors="replace"))
        return digest.digest()
    left = HEAD_BYTES
    for piece in _head(request):
        digest.update(piece[:left] + b"\0")
        left -= len(piece)
        if left <= 0:
            return digest.digest()
    return None


def ranked(key: bytes, views: Iterable[WorkerView]) -> list[WorkerView]:
    """All workers in the key's own order."""
    return sorted(views, key=lambda view: (-_score_of(key, view), view.worker_id))


def is_home(key: bytes, worker: WorkerView, views: Iterable[WorkerView]) -> bool:
    """Whether it is one of the first two in the key's order."""
    score = _score_of(key, worker)
    return sum(_score_of(key, view) > score for view in views) < 2


def best(
    wanted: Beginning,
    order: Sequence[WorkerView],
    free: Sequence[WorkerView],
    *,
    waited_s: float,
    gain: float,
) -> WorkerView | None:
    """The worker to ask of those that have a place: of the first two the conversation's own, else the next
    one in the order, so that what spills over goes to the same worker on every gateway.

    None: none has a place, or one of the first two is worth waiting for. `gain` is the share of such
    requests that only those two spare the computing.
    """
    ids = {view.worker_id for view in free}
    first = [view for view in order[:2] if view.worker_id in ids]
    if len(first) == 2:
        return _own(*first[::-1]) if wanted.second else _own(*first)
    if first:
        return first[0]
    other = next((view for view in order[2:] if view.worker_id in ids), None)
    if other is None or waited_s < gain * _patience_s(wanted, other):
        return None
    return other


def _own(own: WorkerView, other: WorkerView) -> WorkerView:
    """The worker that a conversation keeps to, unless it would wait or compute there much longer."""
    if own.has_slot != other.has_slot:
        return own if own.has_slot else other
    return own if own.prefill_s <= other.prefill_s + _BESIDE_S else other


def _patience_s(wanted: Beginning, other: WorkerView) -> float:
    """How long computing the prompt there is worth waiting to avoid."""
    if not other.prefill_tokens_per_s:
        return 0.0
    return min(LONGEST_PATIENCE_S, _PATIENCE * wanted.tokens / other.prefill_tokens_per_s)


def _score_of(key: bytes, view: WorkerView) -> float:
    return _score(key, view.worker_id, view.capacity.max_num_seqs)


@functools.lru_cache(maxsize=65536)
def _score(key: bytes, worker_id: str, slots: int) -> float:
    digest = hashlib.blake2b(worker_id.encode(), key=key, digest_size=8).digest()
    share = (int.from_bytes(digest, "big") + 1) / (2**64 + 1)
    return -slots / math.log(share)


def _is_odd(request: Generate) -> bool:
    """One bit of a conversation's first turn, which all its turns repeat."""
    first = next((_ends(message) for message in request.messages if message.role == "user"), "")
    return bool(hashlib.blake2b(first.encode(errors="replace"), digest_size=1).digest()[0] & 1)


def _ends(message: ChatMessage) -> str:
    """Where first turns differ: templates come before or after what they are about."""
    content = message.content
    text = content if isinstance(content, str) else "\0".join(part.text for part in content)
    return text[:HEAD_BYTES] + text[-HEAD_BYTES:]


def _head(request: Generate) -> Iterator[bytes]:
    """What the model reads first: tools and system texts, then the first turn."""
    if isinstance(request.prompt, str):
        yield request.prompt[:HEAD_BYTES].encode(errors="replace")
    elif request.prompt is not None:
        yield b"".join((token & 0xFFFFFFFF).to_bytes(4, "little") for token in request.prompt[:HEAD_BYTES])
    for tool in request.tools:
        yield f"{tool.name}\0{tool.description}".encode(errors="replace")
    for message in request.messages:
        yield f"{message.role}\0".encode() + _text(message).encode(errors="replace")


def _text(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content[:HEAD_BYTES]
    return "\0".join(part.text[:HEAD_BYTES] for part in message.content)
