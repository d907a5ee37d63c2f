"""Whose turn it is: fair between keys by the tokens that each was served. Pure.

The virtual token counter of Sheng et al. (OSDI 2024): a token read counts 1, a token written 2, and who
was served least is next. Who comes back after a pause begins where those who wait stand, so that nobody
saves up turns. A request is charged when it is sent, by what this key's requests usually took, as its
own length is not known yet; what it really took is settled at its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

INPUT_WEIGHT = 1
OUTPUT_WEIGHT = 2

_EWMA = 0.2
_LEAST = 1.0


@dataclass(slots=True)
class _Account:
    served: float = 0.0
    """Weighted tokens of what is over."""
    pending: float = 0.0
    """What was charged for that which is under way."""
    usual: float = _LEAST
    """Moving average of what a request took."""
    settled: bool = False


class Accounts:
    """Owns what each key was served, by its name."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._last = 0.0
        """What the key was served before that a request was last charged to."""

    def standing(self, tenant: str) -> float:
        """The key with the least is next."""
        account = self._accounts.get(tenant)
        return 0.0 if account is None else account.served + account.pending

    def arrive(self, tenant: str, waiting: Iterable[str]) -> None:
        """A request of the key begins to wait, beside those of others.

        It begins where they stand, less what they have under way, as it has nothing under way itself.
        """
        others = set(waiting)
        if tenant in others:
            return
        floor = min((self._account(other).served for other in others), default=self._last)
        account = self._account(tenant)
        account.served = max(account.served, floor)

    def charge(self, tenant: str) -> float:
        """One of its requests is sent: what it is charged for now."""
        account = self._account(tenant)
        self._last = account.served
        account.pending += account.usual
        return account.usual

    def settle(self, tenant: str, charged: float, took: float) -> None:
        """That request is over, and took so many weighted tokens; for a turn, one at least."""
        took = max(_LEAST, took)
        account = self._account(tenant)
        account.pending -= charged
        account.served += took
        weight = _EWMA if account.settled else 1.0
        account.usual += weight * (took - account.usual)
        account.settled = True

    def refund(self, tenant: str, charged: float) -> None:
        """It was not taken after all."""
        self._account(tenant).pending -= charged

    def _account(self, tenant: str) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account()
        return account


def weighted(prompt_tokens: int, completion_tokens: int) -> float:
    return INPUT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * completion_tokens
