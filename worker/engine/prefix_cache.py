"""Computed prompt beginnings, kept for requests that begin alike. Lives on the engine thread.

They are kept in memory, and those that were of use also in files, if there is a folder for them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from importlib import metadata

import mlx.core as mx

from worker.engine.prefix_disk import PrefixDisk
from worker.engine.prefix_files import PrefixOptions
from worker.engine.prefix_index import Node, PrefixIndex, common
from worker.engine.prefix_state import (
    Cache,
    Piece,
    block_of,
    can_cut,
    covers,
    evaluate,
    in_blocks,
    joined,
    restored,
    whole_of,
)

logger = logging.getLogger(__name__)

FORMAT = 1
"""Of what is in the files; goes up with each change."""

BLOCK = 64
"""Tokens. What prompts have in common is found to the token in memory, to the block on disk. For less
than this no prompt waits, and none is stopped at."""

_LEAST = 16
"""Shorter common beginnings are not worth the copy."""
_CLOSE_S = 10.0
_LOAD_BYTES = 64 << 20
"""Read from disk in one step of the engine; running streams wait meanwhile."""


def open_prefix_cache(empty: Cache, version: str, options: PrefixOptions) -> PrefixCache:
    """One for a loaded model, whose state before the first token is `empty`.

    `version` is another one for any model, or way of keeping states, whose files would not do. Where
    the folder cannot be used, that is said, and nothing is kept on disk.
    """
    disk = None
    if options.max_bytes and options.max_disk_bytes:
        names = f"{version}\0{FORMAT}\0{metadata.version('mlx-lm')}"
        folder = options.folder / hashlib.sha256(names.encode()).hexdigest()[:32]
        try:
            disk = PrefixDisk(folder, options.max_disk_bytes)
        except OSError as error:
            logger.warning(
                "prefix cache: %s cannot be used, so nothing is kept on disk: %s;"
                " let this user write there, or set prefix_cache_disk_mb to 0",
                folder,
                error,
            )
    return PrefixCache(options.max_bytes, disk, blocks=in_blocks(empty))


class PrefixCache:
    """Owns copies of model states, bounded in bytes. What it hands out is a copy again."""

    def __init__(self, max_bytes: int, disk: PrefixDisk | None = None, *, blocks: bool = True) -> None:
        """0 bytes switch it off. `blocks`: whether all caches of the model can be cut and joined."""
        self._disk = disk if max_bytes else None
        self._index: PrefixIndex[Piece] = PrefixIndex(max_bytes, BLOCK if blocks else None)
        self._put_off: list[tuple[Sequence[int], Cache]] = []
        self._queries = self._hits = self._disk_hits = 0

    @property
    def unsettled(self) -> bool:
        """Whether a state was put off that `settle` will keep."""
        return bool(self._put_off)

    def warm(self, ids: Sequence[int]) -> bool:
        """Bring from disk what memory lacks of `ids`, a step's worth. False: call again for the rest."""
        if self._disk is None:
            return True
        known, read = ids[:-1], 0
        while read < _LOAD_BYTES:
            match = self._index.match(known)
            node, _missing = self._index.missing(known)
            entry = self._disk.find(node.key, known[node.end :], match.tokens - node.end)
            piece = None if entry is None else self._disk.read(entry)
            if entry is None or piece is None or not self._index.make_room(piece.nbytes, node):
                return True
            tokens = tuple(known[node.end : node.end + entry.tokens])
            exact = self._index.block is None and not can_cut(piece.caches)
            self._index.add(node, tokens, piece, piece.nbytes, exact=exact)
            self._disk_hits += entry.tokens
            read += piece.nbytes
        return False

    def fetch(self, ids: Sequence[int]) -> tuple[Cache | None, int]:
        """A state of the longest known beginning of `ids`, never of all, and its number of tokens."""
        if not self._index.max_bytes:
            return None, 0
        self._queries += len(ids)
        match = self._index.match(ids[:-1])
        if match.tokens < _LEAST:
            return None, 0
        self._index.use(match)
        self._hits += match.tokens
        if self._disk is not None:
            self._offer(match.path)
            self._disk.use([node.key for node in match.path])
        pieces = [node.payload for node in match.path if node.payload is not None]
        if self._index.block is not None:
            return joined(pieces, match.tokens), match.tokens
        return restored(pieces[0], surplus=match.path[0].end - match.tokens), match.tokens

    def known(self, ids: Sequence[int]) -> int:
        """How many tokens `fetch` would bring from memory."""
        tokens = self._index.match(ids[:-1]).tokens
        return tokens if tokens >= _LEAST else 0

    def gains(self, ids: Sequence[int], leaders: Sequence[Sequence[int]]) -> bool:
        """Whether there is more to fetch of `ids` once one of these, about to be read, is read."""
        if not self._index.max_bytes or not leaders:
            return False
        more = self.known(ids) + BLOCK
        return more < len(ids) and any(
            more < len(leader) and leader[:more] == ids[:more] for leader in leaders
        )

    def stops(self, ids: Sequence[int], others: Iterable[Sequence[int]]) -> list[int]:
        """Where the reading of `ids` has to stop for its state to be of use to those who part there.

        These are earlier prompts, whose like may come again, and `others`, which wait.
        """
        if self._index.block is not None or not self._index.max_bytes:
            return []
        partings = {self._index.branch(ids[:-1]), *(common(ids[:-1], other[:-1]) for other in others)}
        stops: list[int] = []
        for parting in sorted(partings):
            if parting - (stops[-1] if stops else self.known(ids)) >= BLOCK:
                stops.append(parting)
        return stops

    def store(self, ids: Sequence[int], cache: Cache) -> None:
        """Keep the state after exactly these ids. It never raises: what it is for is done already."""
        try:
            self._store(ids, cache)
        except Exception:
            logger.exception("prefix cache: a state could not be kept, so all are dropped")
            self.forget()

    def store_later(self, ids: Sequence[int], cache: Cache) -> None:
        """As `store`, with the next `settle`: what waits for an answer's end does not wait for its copy."""
        if self._index.max_bytes:
            self._put_off.append((ids, cache))

    def settle(self) -> None:
        """Store what was put off. It never raises."""
        put_off, self._put_off = self._put_off, []
        for ids, cache in put_off:
            self.store(ids, cache)

    def discard(self, ids: Sequence[int]) -> None:
        """Drop what is kept of a prompt that went wrong, as far as it shares it with no other."""
        for node in reversed(self._index.match(ids).path):
            if node.children:
                return
            self._index.drop(node)
            if self._disk is not None:
                self._disk.discard(node.key)

    def forget(self) -> None:
        """Drop what is in memory."""
        self._put_off.clear()
        self._index.clear()
        mx.clear_cache()

    def clear(self) -> None:
        """Drop what is in memory, and remove what is on disk."""
        self.forget()
        if self._disk is not None:
            self._disk.clear()

    def close(self) -> None:
        """Drop what is in memory; what was used last is written first, as far as there is a disk tier."""
        self.settle()
        if self._disk is not None:
            self._offer(sorted(self._index.nodes(), key=lambda node: (-node.used, node.end)))
            self._disk.close(_CLOSE_S)
        self.forget()

    def stats(self) -> dict[str, int]:
        """In vLLM's words where it has them: queries and hits are tokens."""
        disk = {} if self._disk is None else self._disk.stats() | {"prefix_cache_disk_hits": self._disk_hits}
        return {
            "prefix_cache_queries": self._queries,
            "prefix_cache_hits": self._hits,
            "prefix_cache_entries": self._index.entries,
            "prefix_cache_bytes": self._index.bytes,
            "prefix_cache_max_bytes": self._index.max_bytes,
            "prefix_cache_evictions": self._index.evictions,
        } | disk

    def _store(self, ids: Sequence[int], cache: Cache) -> None:
        blocks = self._index.block is not None
        if len(ids) < _LEAST or not covers(cache, len(ids)) or (blocks and not in_blocks(cache)):
            return
        exact = not can_cut(cache)
        node, missing = self._index.missing(ids)
        added: list[Piece] = []
        for tokens in missing:
            piece = block_of(cache, node.end, node.end + len(tokens)) if blocks else whole_of(cache)
            if not added:  # once for all is faster than for each
                self._index.make_room(piece.nbytes * len(missing), node)
            if not self._index.make_room(piece.nbytes, node):
                break
            node = self._index.add(node, tokens, piece, piece.nbytes, exact=exact)
            added.append(piece)
        evaluate(added)

    def _offer(self, nodes: Iterable[Node[Piece]]) -> None:
        for node in nodes:
            whole = self._index.block in (None, len(node.tokens))
            if self._disk is not None and node.payload is not None and whole:
                self._disk.offer(node.key, len(node.tokens), node.payload)
