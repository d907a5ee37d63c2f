#!/usr/bin/env python3
"""Asks a Studiofleet gateway one question and streams the answer to the terminal.

The answer goes to the standard output; who gave it, and how fast, to the standard error. Fails
when there is no answer. Needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_TIMEOUT_S = 300.0


@dataclass
class Answer:
    """What came back, and when."""

    worker: str = "?"
    text: str = ""
    tokens: int = 0
    finish_reason: str | None = None
    first_s: float = 0.0
    total_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """After the first token, which waits for the prompt to be read."""
        return (self.tokens - 1) / (self.total_s - self.first_s) if self.tokens > 1 else 0.0


class NoAnswerError(RuntimeError):
    """The gateway gave no answer: why."""


def main() -> None:
    """The program."""
    arguments = argparse.ArgumentParser(prog="ask.py", description=__doc__)
    arguments.add_argument("question")
    arguments.add_argument("--url", default="http://127.0.0.1:8000", help="of the gateway")
    arguments.add_argument("--model", default="default")
    arguments.add_argument("--temperature", type=float, default=0.7)
    arguments.add_argument("--max-tokens", type=int, default=256)
    options = arguments.parse_args()
    try:
        answer = ask(options.url, _body(options))
    except ConnectionRefusedError:
        sys.exit(f"no answer: nothing listens at {options.url}; to start the cluster: clusterctl up --wait")
    except (NoAnswerError, OSError, http.client.HTTPException) as error:
        sys.exit(f"no answer: {error}")
    print()
    print(
        f"[{answer.worker}] first token after {answer.first_s:.2f} s, {answer.tokens} tokens,"
        f" {answer.tokens_per_s:.1f} tokens/s",
        file=sys.stderr,
    )


def _body(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "model": options.model,
        "messages": [{"role": "user", "content": options.question}],
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def ask(url: str, body: dict[str, Any]) -> Answer:
    """Stream the answer to the standard output. Raises `NoAnswerError`, `OSError` and `HTTPException`."""
    address = urlsplit(url if "://" in url else f"http://{url}")
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_TIMEOUT_S)
    begun = time.monotonic()
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"}
        )
        response = connection.getresponse()
        if response.status != 200:
            raise NoAnswerError(f"status {response.status}: {_words(response.read())}")
        answer = Answer(worker=response.headers.get("x-worker-id", "?"))
        for event in _events(response):
            _take(answer, event, time.monotonic() - begun)
    finally:
        connection.close()
    if answer.finish_reason is None or not answer.text.strip():
        raise NoAnswerError("the stream ended before the answer was complete")
    return answer


def _words(body: bytes) -> str:
    """The message of an error, or the body as it stands where another program answers."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:500]


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        data = line.decode().strip().removeprefix("data: ")
        if data == "[DONE]":
            return
        if data.startswith("{"):
            yield json.loads(data)


def _take(answer: Answer, event: dict[str, Any], elapsed_s: float) -> None:
    if "error" in event:
        raise NoAnswerError(event["error"].get("message", "an error without words"))
    for choice in event.get("choices", []):
        text = choice.get("delta", {}).get("content") or ""
        if text and not answer.text:
            answer.first_s = elapsed_s
        answer.text += text
        answer.total_s = elapsed_s
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        sys.stdout.write(text)
        sys.stdout.flush()
    if usage := event.get("usage"):
        answer.tokens = usage["completion_tokens"]


if __name__ == "__main__":
    main()
