"""What the real engine tells of tokens is how it reads prompts."""

from __future__ import annotations

import asyncio

import pytest

from worker.engine.output import PromptError

TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2? 👋"}]


def test_what_is_told_of_tokens_is_what_the_engine_reads(make_engine):
    """FC-82: a count equals the prompt of the real call."""

    async def scenario():
        async with make_engine() as engine:
            await counts(engine)
            await texts(engine)

    asyncio.run(scenario())


async def counts(engine):
    tokens = await engine.tokenize_chat(TURNS, None, {}, pieces=True)
    answer = await engine.chat(TURNS, max_tokens=1)
    assert len(tokens.ids) == len(tokens.pieces) == answer.prompt_tokens
    back = await engine.detokenize(tokens.ids, pieces=False)
    assert back.text == tokens.text
    assert "Be brief." in tokens.text


async def texts(engine):
    tokens = await engine.tokenize("A text, é 漢 👩‍👧.", special=True, pieces=False)
    assert (await engine.detokenize(tokens.ids, pieces=False)).text == tokens.text
    assert (await engine.tokenize("", special=True, pieces=False)).ids == []
    with pytest.raises(PromptError, match="does not know"):
        await engine.detokenize([10**6], pieces=False)
