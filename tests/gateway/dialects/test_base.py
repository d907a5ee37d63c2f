"""What holds for the writers of all dialects."""

from __future__ import annotations

import pytest

from gateway.dialects.anthropic_answer import Messages
from gateway.dialects.base import Dialect
from gateway.dialects.ollama import parse_chat, parse_generate
from gateway.dialects.ollama_answer import Ollama
from gateway.dialects.openai_chat_answer import ChatCompletions
from gateway.dialects.openai_completions import Completions
from gateway.dialects.openai_responses_answer import Responses
from gateway.pieces import Piece
from tests.gateway.dialects.answers import IDENTITY, USAGE, finished

_TURN = '"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9'
_COUNTED = '"stream_options": {"include_usage": true, "continuous_usage_stats": true}'


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        (ChatCompletions(), _TURN),
        (ChatCompletions(), f"{_TURN}, {_COUNTED}"),
        (Completions(), '"prompt": "hi"'),
        (Completions(), f'"prompt": "hi", "echo": true, {_COUNTED}'),
        (Responses(), '"input": "hi"'),
        (Messages(drop_billing_line=False), _TURN),
        (Ollama(parse_chat), _TURN),
        (Ollama(parse_generate), '"prompt": "hi"'),
    ],
)
def test_a_plain_text_is_written_as_the_piece_that_it_is(dialect: Dialect, fields: str):
    asked = dialect.parse(f'{{"model": "m", "stream": true, {fields}}}'.encode())
    short, long = (dialect.writer(asked, IDENTITY) for _ in range(2))
    assert short.start(USAGE) == long.start(USAGE)
    for count, text in enumerate(("a", ' "b"\n', "ü👋"), start=1):
        piece = Piece(text=text, completion_tokens=count)
        assert short.text(0, text, count) == long.piece(0, piece)
    assert short.keepalive() == long.keepalive()
    assert short.finish(0, finished()) == long.finish(0, finished())
