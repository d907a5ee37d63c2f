"""Questions about the engine itself, answered at once: its statistics, its caches, what it does not do."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from protocol.errors import ErrorCode
from protocol.messages import ClearCaches, Failed, LoadModel, Message, Result, Stats, Unload
from protocol.values import Load
from worker.engine.base import BaseEngine

logger = logging.getLogger(__name__)


class Inquiries:
    """Owns the counts of odd messages, and how often the caches were cleared."""

    def __init__(
        self, engine: BaseEngine, send: Callable[[str, Message], None], load: Callable[[], Load]
    ) -> None:
        self._engine = engine
        self._send = send
        self._load = load
        self.cache_epoch = 0
        self.odd_messages: Counter[str] = Counter()

    def stats(self, gateway: str, message: Stats) -> None:
        self._answer(
            gateway,
            message.request_id,
            lambda: {
                "engine": self._engine.get_stats(),
                "caches": self._engine.get_cache_stats(),
                "messages": dict(self.odd_messages),
            },
        )

    def clear_caches(self, gateway: str, message: ClearCaches) -> None:
        self.cache_epoch += 1
        self._answer(gateway, message.request_id, self._engine.clear_runtime_caches)

    def unsupported(self, gateway: str, message: LoadModel | Unload) -> None:
        kind = type(message).__name__
        self.odd_messages[f"unsupported_{kind}"] += 1
        logger.warning("gateway %s sent a %s, which this worker does not do", gateway, kind)

    def _answer(self, gateway: str, request_id: str, ask: Callable[[], Any]) -> None:
        try:
            plain = msgspec.to_builtins(ask(), enc_hook=str, str_keys=True)
        except Exception as error:
            logger.exception("the engine could not be asked")
            self._fail(gateway, request_id, ErrorCode.ENGINE_FAILED, f"the engine failed: {error}")
        else:
            self._send(gateway, Result(request_id=request_id, value=plain))

    def _fail(self, gateway: str, request_id: str, code: ErrorCode, why: str) -> None:
        load = self._load()
        self._send(gateway, Failed(request_id=request_id, attempt=0, code=code, message=why, load=load))
