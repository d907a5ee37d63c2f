"""Requests that begin alike go to the same workers, whose caches know that beginning. Pure.

Rendezvous hashing (Thaler and Ravishankar 1998, weighted by slots): every gateway finds the same
order of workers for a key, without shared state; a worker that comes or goes moves only its own keys.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence

from gateway.registry import WorkerView
from protocol.messages import Generate
from protocol.values import ChatMessage

HEAD_BYTES = 1024
"""About 256 tokens: what is shared by shorter prompts is cheaper to compute than to look for."""


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
    return sorted(views, key=lambda view: (-_score(key, view), view.worker_id))


def best(order: Sequence[WorkerView], free: Sequence[WorkerView]) -> list[WorkerView]:
    """Those to choose from: of the first two in the order the ones that have a place; else the next
    one that has, so that what spills over goes to the same worker on every gateway."""
    ids = {view.worker_id for view in free}
    first = [view for view in order[:2] if view.worker_id in ids]
    return first or [view for view in order[2:] if view.worker_id in ids][:1]


def _score(key: bytes, view: WorkerView) -> float:
    digest = hashlib.blake2b(view.worker_id.encode(), key=key, digest_size=8).digest()
    share = (int.from_bytes(digest, "big") + 1) / (2**64 + 1)
    return -view.capacity.max_num_seqs / math.log(share)


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
