"""What workers are told about their models, and what clients are told meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gateway.catalog import Catalog
from gateway.flight import Transport
from gateway.registry import Registry
from gateway.residency import Load, Residency, ready_in_s
from protocol.config import ResidencyConfig
from protocol.errors import ClusterError, ErrorCode
from protocol.messages import LoadModel, Unload

logger = logging.getLogger(__name__)


class Orders:
    """Gives the orders that the policy decides. Called from the event loop only."""

    def __init__(
        self, config: ResidencyConfig, registry: Registry, catalog: Catalog, transport: Transport
    ) -> None:
        self._config = config
        self._registry = registry
        self._catalog = catalog
        self._transport = transport
        self._policy = Residency()

    def admit(self, model: str, now: float, *, waits: bool | None) -> None:
        """Raises `ClusterError` where the model has to be loaded first and the request does not wait.

        `waits` is what its client wants; None: as configured.
        """
        if not self._catalog.is_cold(model):
            return
        if waits is None:
            waits = self._config.when_cold == "wait" or not self._catalog.is_on_demand(model)
        if not waits:
            raise self.loading(model, now)

    def loading(self, model: str, now: float) -> ClusterError:
        """What to say to somebody who does not wait; the model is loaded all the same, for the next."""
        self._policy.wish(model, now)
        wait_s = ready_in_s(self._catalog.workers_of(model), now)
        message = f"the model {model!r} is being loaded; ask again in {wait_s:.0f} s, or let the request wait"
        return ClusterError(ErrorCode.MODEL_LOADING, message, retry_after_s=wait_s)

    def give(self, waiting: Mapping[str, float], now: float) -> None:
        """Have models loaded and freed. `waiting`: since when each is waited for."""
        for action in self._policy.decide(self._registry.views(), waiting, now):
            worker = self._registry.named(action.worker_id)
            if worker is not None:
                message = LoadModel() if isinstance(action, Load) else Unload(drain=action.drain)
                logger.info("worker %s (%s) is told: %s", worker.worker_id, worker.card.name, message)
                self._transport.send(worker.connection, message)  # one that does not arrive is given again
