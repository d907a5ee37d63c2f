"""Whether beginnings of prompts are found in the caches of workers that they do not belong to. Pure."""

from __future__ import annotations

from collections import OrderedDict

_MOST_KEYS = 4096
_NEWEST = 0.3


class Finds:
    """Owns, for each key that left its own workers, a moving average of how often it was found elsewhere."""

    def __init__(self) -> None:
        self._elsewhere: OrderedDict[bytes, float] = OrderedDict()
        self._models: set[str] = set()

    def learn(self, model: str, key: bytes, *, home: bool, found: bool) -> None:
        """A request of that key was begun, at one of its own workers or not."""
        if found:
            self._models.add(model)
        if home:
            return
        old = self._elsewhere.pop(key, 0.0)
        self._elsewhere[key] = old + _NEWEST * (found - old)
        if len(self._elsewhere) > _MOST_KEYS:
            self._elsewhere.popitem(last=False)

    def elsewhere(self, key: bytes) -> float:
        """The share of that key's requests that any worker spares the computing; 0 where nothing is known."""
        return self._elsewhere.get(key, 0.0)

    def any_of(self, model: str) -> bool:
        """Whether a cache of that model ever found anything."""
        return model in self._models
