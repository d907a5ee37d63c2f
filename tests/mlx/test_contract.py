"""The contract's cases, against the batched engine on the embedded model."""

from tests.worker.engine.contract import *  # noqa: F403
