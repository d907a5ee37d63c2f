"""Which beginnings of prompts are kept, which of them serves a prompt, and which one goes first. Pure.

Beginnings form a tree. Where a model's cache can be cut anywhere, its nodes are blocks of `block`
tokens, so that prompts share what they have in common and the last block of a long one can go alone.
Where it cannot (sliding windows, state spaces), a node is a whole beginning beneath the root, and may
be exact: of use only to a prompt that goes on where it ends.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")
Tokens = tuple[int, ...]

_MOST_HITS = 15
"""More reuse than this does not count: what was in demand long ago has to go at last."""


@dataclass(eq=False)
class Node(Generic[T]):
    """The computed state of `tokens`, which follow those of `parent`."""

    tokens: Tokens
    parent: Node[T] | None
    payload: T | None
    nbytes: int
    exact: bool = False
    used: int = 0
    """The index's count of uses when it was used last."""
    hits: int = 0
    children: dict[Tokens, Node[T]] = field(default_factory=dict)
    order: list[Tokens] = field(default_factory=list)
    """The children's tokens, sorted: those that have most in common with a prompt stand beside it."""
    end: int = field(init=False)
    key: bytes = field(init=False)
    """Names these tokens and all before them."""

    def __post_init__(self) -> None:
        self.end = len(self.tokens) + (self.parent.end if self.parent else 0)
        self.key = chained(self.parent.key, self.tokens) if self.parent else b""


@dataclass(frozen=True)
class Match(Generic[T]):
    """The nodes that hold the first `tokens` tokens of a prompt; of the last one maybe only a part."""

    path: tuple[Node[T], ...]
    tokens: int


def chained(key: bytes, tokens: Sequence[int]) -> bytes:
    """The name of a beginning: that of what comes before, and its own tokens."""
    return hashlib.blake2b(key + array("Q", tokens).tobytes(), digest_size=16).digest()


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def worth(node: Node[T], now: int) -> float:
    """What keeping it is worth: by reuse and the prompt's length, for its bytes, less with others' each use.

    As in hyperbolic caching (Blankstein et al. 2017), with the tokens saved as the cost.
    """
    saved = len(node.tokens) * math.log2(1 + node.end)
    return (1 + min(node.hits, _MOST_HITS)) * saved / max(1, node.nbytes) / (1 + now - node.used)


class PrefixIndex(Generic[T]):
    """Owns the tree, within `max_bytes`."""

    def __init__(self, max_bytes: int, block: int | None) -> None:
        """`block` None: whole beginnings."""
        self.max_bytes = max_bytes
        self.block = block
        self.root: Node[T] = Node((), None, None, 0)
        self.bytes = 0
        self.entries = 0
        self.evictions = 0
        self._uses = 0

    def match(self, ids: Sequence[int]) -> Match[T]:
        """The longest kept beginning of `ids`."""
        path: list[Node[T]] = []
        node = self.root
        while self.block is not None:
            child = node.children.get(tuple(ids[node.end : node.end + self.block]))
            if child is None or len(child.tokens) < self.block:
                break
            path.append(child)
            node = child
        rest = tuple(ids[node.end :] if self.block is None else ids[node.end : node.end + self.block])
        last, tokens = self._best(node, rest)
        if last is not None:
            path.append(last)
        return Match(tuple(path), node.end + tokens)

    def use(self, match: Match[T]) -> None:
        """Count the use of a match."""
        self._uses += 1
        for node in match.path:
            node.used = self._uses
            node.hits += 1

    def branch(self, ids: Sequence[int]) -> int:
        """How many tokens `ids` has in common with any whole beginning, even where that cannot be cut."""
        return max((common(near.tokens, ids) for near in self._nearest(self.root, tuple(ids))), default=0)

    def missing(self, ids: Sequence[int]) -> tuple[Node[T], list[Tokens]]:
        """The last node of what is kept of `ids`, and the tokens of those that would have to follow it."""
        node = self.root
        for known in self.match(ids).path:
            if len(known.tokens) == self.block and known.tokens == tuple(ids[node.end : known.end]):
                node = known
        size = self.block or max(1, len(ids))
        spans = [tuple(ids[start : start + size]) for start in range(node.end, len(ids), size)]
        if spans and self._covered(node, spans[0]):
            del spans[0]
        return node, spans

    def make_room(self, nbytes: int, leaf: Node[T]) -> bool:
        """Drop what is worth least until so many bytes fit, but neither `leaf` nor what it follows."""
        if self.bytes + nbytes <= self.max_bytes:
            return True
        kept, numbers = {self.root, *_upwards(leaf)}, count()

        def entry(node: Node[T]) -> tuple[float, int, Node[T]]:
            return worth(node, self._uses), next(numbers), node

        leaves = [entry(node) for node in self.nodes() if not node.children and node not in kept]
        heapify(leaves)
        while leaves and self.bytes + nbytes > self.max_bytes:
            node = heappop(leaves)[2]
            self.drop(node)
            self.evictions += 1
            parent = node.parent
            if parent is not None and not parent.children and parent not in kept:
                heappush(leaves, entry(parent))
        return self.bytes + nbytes <= self.max_bytes

    def add(
        self, parent: Node[T], tokens: Tokens, payload: T, nbytes: int, *, exact: bool = False
    ) -> Node[T]:
        """Keep a node for which there is room. It takes the place of those that it covers."""
        node = Node(tokens, parent, payload, nbytes, exact, used=self._uses)
        for length in {len(known) for known in parent.order if len(known) <= len(tokens)}:
            known = parent.children.get(tokens[:length])
            if known is not None and (known.tokens == tokens or not (exact or known.exact)):
                node.hits = max(node.hits, known.hits)
                self.drop(known)
        parent.children[tokens] = node
        insort(parent.order, tokens)
        self.bytes += nbytes
        self.entries += 1
        return node

    def drop(self, node: Node[T]) -> None:
        """Forget a node that has no children."""
        if node.parent is None or node.children:
            raise ValueError("only a leaf can be dropped")
        del node.parent.children[node.tokens]
        del node.parent.order[bisect_left(node.parent.order, node.tokens)]
        self.bytes -= node.nbytes
        self.entries -= 1

    def clear(self) -> None:
        self.root = Node((), None, None, 0)
        self.bytes = self.entries = 0

    def nodes(self) -> Iterator[Node[T]]:
        """All of them, each after what it follows."""
        waiting = list(self.root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())

    def _best(self, node: Node[T], rest: Tokens) -> tuple[Node[T] | None, int]:
        """The child that serves `rest` best, and how many tokens of it."""
        best: tuple[Node[T] | None, int] = (None, 0)
        for near in self._nearest(node, rest):
            shared = common(near.tokens, rest)
            if shared > best[1] and (shared == len(near.tokens) or not near.exact):
                best = (near, shared)
        for length in sorted({len(known) for known in node.order}, reverse=True):
            if length <= best[1]:
                break
            if (whole := node.children.get(rest[:length])) is not None:
                return whole, len(whole.tokens)
        return best

    def _covered(self, node: Node[T], tokens: Tokens) -> bool:
        known, shared = self._best(node, tokens)
        return known is not None and shared == len(tokens)

    @staticmethod
    def _nearest(node: Node[T], rest: Tokens) -> list[Node[T]]:
        at = bisect_left(node.order, rest)
        return [node.children[tokens] for tokens in node.order[max(0, at - 1) : at + 1]]


def _upwards(node: Node[T] | None) -> Iterator[Node[T]]:
    while node is not None:
        yield node
        node = node.parent
