"""The plainest Starlette server of a chat stream. usage: starlette_sse.py URL_FILE TOKENS DELAY_S"""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

TOKENS, DELAY_S = int(sys.argv[2]), float(sys.argv[3])
COMMON = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


async def chat(request: Request) -> StreamingResponse:
    await request.body()

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(TOKENS):
            await asyncio.sleep(DELAY_S)
            choice = {"index": 0, "delta": {"content": " word"}, "logprobs": None, "finish_reason": None}
            yield b"data: " + msgspec.json.encode({**COMMON, "choices": [choice]}) + b"\n\n"
        yield b"data: [DONE]\n\n"

    return StreamingResponse(chunks(), media_type="text/event-stream")


if __name__ == "__main__":
    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    listener = socket.create_server(("127.0.0.1", 0))
    Path(sys.argv[1]).write_text(f"http://127.0.0.1:{listener.getsockname()[1]}")
    settings = uvicorn.Config(app, http="httptools", loop="asyncio", log_config=None, access_log=False)
    asyncio.run(uvicorn.Server(settings).serve(sockets=[listener]))
