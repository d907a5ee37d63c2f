"""Which worker may come with which key. Pure; what is allowed is replaced as a whole."""

from __future__ import annotations

from protocol.wire_keys import AllowList

_AGAIN_S = 60.0
"""A refusal is named in the log again after so long."""
_MANY = 256


class Guard:
    """Owns the allow-list that is in force. Keys are public ones, in Z85; "" is a peer of this machine."""

    def __init__(self) -> None:
        self.allowed = AllowList()
        self._named_at: dict[str, float] = {}

    def knows(self, key: str) -> bool:
        """Whether some worker may come with it."""
        return not key or self.allowed.has(key)

    def refusal(self, key: str, worker_id: str) -> str:
        """Why a peer with that key may not be this worker, with the cure; empty when it may."""
        if not key or self.allowed.keys.get(worker_id) == key:
            return ""
        allow = f"clusterctl worker-key allow {worker_id} '{key}'"
        if owned := self.allowed.ids_of(key):
            return (
                f"worker {worker_id!r} came with the key of {', '.join(map(repr, owned))}; give it a key of"
                f" its own, or let it have this one, on the gateway's machine: {allow}"
            )
        if worker_id in self.allowed.keys:
            return (
                f"worker {worker_id!r} came with another key than the one that is allowed for it; if it was"
                f" given a new one, on the gateway's machine: {allow}"
            )
        return f"the key of worker {worker_id!r} is not allowed (any more); to allow it: {allow}"

    def should_name(self, refused: str, now: float) -> bool:
        """Whether the refusal of that key, or for that reason, is worth a line: not at each try."""
        if now < self._named_at.get(refused, now):
            return False
        if len(self._named_at) >= _MANY:
            self._named_at.clear()
        self._named_at[refused] = now + _AGAIN_S
        return True
