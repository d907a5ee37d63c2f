"""Questions about tokens: answered beside the requests, also while every place is taken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from protocol.errors import ErrorCode
from protocol.messages import Failed, Message, Result, Tokenize
from protocol.values import Load
from worker.engine.base import BaseEngine
from worker.engine.output import EngineFailed, FleetEngine, PromptError, PromptStuck, Tokenizing, Tokens
from worker.request import chat_messages, chat_tools

logger = logging.getLogger(__name__)

LIMIT_S = 60.0


class Tokenizer:
    """Owns the tasks that answer; lives on the event loop.

    `send` takes what is to be said to a gateway, `load` tells what the worker has in hand, `broken` is
    called when the engine is beyond help.
    """

    def __init__(
        self,
        engine: BaseEngine,
        send: Callable[[str, Message], None],
        load: Callable[[], Load],
        broken: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._send = send
        self._load = load
        self._broken = broken
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, gateway: str, question: Tokenize) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(gateway, question))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, gateway: str, question: Tokenize) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                found = await self._found(question)
        except Exception as error:  # noqa: BLE001 (an engine may raise anything; it concerns this question)
            self._send(gateway, self._refusal(question, error))
            return
        value = {
            "text": found.text,
            "token_ids": found.ids,
            "pieces": found.pieces,
            "max_model_len": self._engine.facts().max_model_len
            if isinstance(self._engine, FleetEngine)
            else None,
        }
        self._send(gateway, Result(request_id=question.request_id, value=value))

    async def _found(self, question: Tokenize) -> Tokens:
        engine = self._engine
        if not isinstance(engine, Tokenizing):
            raise PromptError("this worker's engine does not tell tokens", "unsupported")
        if question.token_ids:
            return await engine.detokenize(list(question.token_ids), pieces=question.pieces)
        if question.messages:
            messages, tools = chat_messages(question), chat_tools(question)
            return await engine.tokenize_chat(
                messages, tools, question.template_options, pieces=question.pieces
            )
        return await engine.tokenize(question.text, special=question.special, pieces=question.pieces)

    def _refusal(self, question: Tokenize, error: Exception) -> Failed:
        code, message, param = ErrorCode.ENGINE_FAILED, f"{type(error).__name__}: {error}", None
        if isinstance(error, PromptError):
            code, message = ErrorCode.INVALID_REQUEST, str(error)
            param = "messages" if question.messages else "tokens" if question.token_ids else "prompt"
            if error.reason == "unsupported":
                code = ErrorCode.UNSUPPORTED
        elif isinstance(error, EngineFailed):
            self._broken(str(error))
            code = ErrorCode.INVALID_REQUEST if isinstance(error, PromptStuck) else ErrorCode.WORKER_LOST
        else:
            logger.error("request %s: its tokens could not be told: %s", question.request_id, message)
        return Failed(
            request_id=question.request_id,
            attempt=0,
            code=code,
            message=message,
            load=self._load(),
            param=param,
        )
