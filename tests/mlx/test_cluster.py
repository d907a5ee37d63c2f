"""The embedded model behind a real gateway: batches, disconnects, stops while loading."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.cluster import Cluster, chat, config_text, running, stream_chat, text_of, wait_for

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="mlx is not installed"),
]

PATIENCE_S = 240.0
LONG = 6000
"""Tokens of an answer that nobody waits for: minutes of work, unless it is aborted."""
ABORTED_S = 30.0
"""Far more than a step or a piece of a prompt, far less than such an answer."""
ROUNDS = int(os.environ.get("STUDIOFLEET_MLX_DISCONNECT_ROUNDS", "20"))
WORKER = '[[workers]]\nid = "smol-1"\nmodel = "embedded"\nmax_num_seqs = 8\n'
QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "Write one sentence about the sea.",
    "What is 2 + 2?",
    "Who wrote Hamlet?",
    "Give me a word that rhymes with cat.",
    "What do bees make?",
    "Say hello in Spanish.",
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(config_text(WORKER), "smol-1", patience_s=PATIENCE_S) as found:
        yield found


def _ask(question: str, **fields: Any) -> dict[str, Any]:
    return chat(question, model="smollm2-135m", temperature=0, **fields)


def test_a_real_answer_comes_back(cluster: Cluster):
    answer = httpx.post(
        cluster.url() + "/v1/chat/completions", json=_ask(QUESTIONS[0], max_tokens=24), timeout=PATIENCE_S
    )
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    assert answer.headers["x-worker-id"] == "smol-1"


def test_a_prompt_scores_as_it_did_while_it_was_an_answer(cluster: Cluster):
    """Log-probabilities of an answer, against those of the same tokens when they are the prompt."""

    def complete(prompt: Any, **fields: Any) -> Any:
        body = {"model": "smollm2-135m", "prompt": prompt, "temperature": 0, "logprobs": 1, **fields}
        answer = httpx.post(cluster.url() + "/v1/completions", json=body, timeout=PATIENCE_S)
        return answer.json()["choices"][0]

    prompt = "The capital of France is"
    echoed = complete(prompt, max_tokens=8, echo=True)
    scored = complete(echoed["text"], max_tokens=0, echo=True)
    assert echoed["text"].startswith(prompt)
    assert scored["text"] == echoed["text"]
    assert scored["logprobs"]["tokens"] == echoed["logprobs"]["tokens"]
    assert scored["logprobs"]["text_offset"] == echoed["logprobs"]["text_offset"]
    pairs = zip(scored["logprobs"]["token_logprobs"], echoed["logprobs"]["token_logprobs"], strict=True)
    assert next(pairs) == (None, None)
    assert all(abs(one - other) < 1e-3 for one, other in pairs)


def test_eight_streams_together_equal_the_eight_alone(cluster: Cluster):
    async def scenario() -> None:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            bodies = [_ask(question, max_tokens=24) for question in QUESTIONS]
            alone = [text_of(await stream_chat(client, body)) for body in bodies]
            together = [asyncio.create_task(stream_chat(client, body)) for body in bodies]
            await asyncio.to_thread(
                wait_for, lambda: cluster.worker("smol-1")["running"] == 8, "running = 8", PATIENCE_S
            )
            assert [text_of(events) for events in await asyncio.gather(*together)] == alone

    asyncio.run(scenario())
    cluster.wait_idle()


def test_a_seeded_answer_is_the_same_alone_and_in_a_batch(cluster: Cluster):
    async def scenario() -> None:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            body = {**_ask("Tell me a story.", max_tokens=16), "temperature": 0.8, "top_p": 0.9, "seed": 42}
            alone = text_of(await stream_chat(client, body))
            others = [asyncio.create_task(stream_chat(client, _ask(q, max_tokens=30))) for q in QUESTIONS[:3]]
            assert text_of(await stream_chat(client, body)) == alone
            await asyncio.gather(*others)

    asyncio.run(scenario())


def test_fc_58_four_streams_of_characters_in_pieces_equal_their_whole_answers(cluster: Cluster):
    """The model's tokens are pieces of bytes; what it is to say is made sure by a regular expression."""
    said = "👩\u200d👧é漢字😀\ufffd"
    body = _ask("Repeat.", max_tokens=60, structured_outputs={"regex": f"({said}){{2}}"})

    async def scenario() -> None:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            streams = await asyncio.gather(*(stream_chat(client, body) for _ in range(4)))
            whole = await client.post("/v1/chat/completions", json=body)
            assert whole.json()["choices"][0]["message"]["content"] == said * 2
            assert [text_of(events) for events in streams] == [said * 2] * 4
            pieces = [event["choices"][0] for event in streams[0] if event != "[DONE]" and event["choices"]]
            assert all(piece["finish_reason"] or any(piece["delta"].values()) for piece in pieces[1:])

    asyncio.run(scenario())


def _look(begun: asyncio.Event, line: str) -> None:
    if '"content"' in line and '"role"' not in line:
        begun.set()


def test_fc_06_mixed_settings_that_join_and_leave_one_batch_each_answer_as_alone(cluster: Cluster):
    mixed: list[dict[str, Any]] = [
        {},
        {"logit_bias": {"5": -100}},
        {"repetition_penalty": 1.1},
        {"frequency_penalty": 0.5},
    ]
    bodies = [
        _ask("Tell me a story about the sea.", max_tokens=10 + 4 * number, **settings)
        for number, settings in enumerate(mixed)
    ]
    last = _ask("Name three colours.", max_tokens=10)

    async def joined(client: httpx.AsyncClient, order: list[dict[str, Any]]) -> list[str]:
        """Their texts in that order. Each comes when the one before has begun to answer."""
        tasks = []
        for body in order:
            begun = asyncio.Event()
            look = functools.partial(_look, begun)
            tasks.append(asyncio.create_task(stream_chat(client, body, look)))
            await asyncio.wait_for(begun.wait(), PATIENCE_S)
        return [text_of(events) for events in await asyncio.gather(*tasks)]

    async def scenario() -> None:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            alone = [text_of(await stream_chat(client, body)) for body in [*bodies, last]]
            assert await joined(client, bodies) == alone[:-1]
            assert await joined(client, bodies[::-1]) == alone[-2::-1]
            assert text_of(await stream_chat(client, last)) == alone[-1]

    asyncio.run(scenario())
    cluster.wait_idle()


def test_clients_that_leave_in_every_phase_free_their_slots(cluster: Cluster):
    rng = random.Random(11)

    async def leave(client: httpx.AsyncClient, index: int) -> None:
        phase = ("prefill", "first token", "in the middle", "non-streaming")[index % 4]
        if phase in ("prefill", "non-streaming"):
            body = _ask("word " * 300 + str(index), max_tokens=LONG, stream=phase == "prefill")
            task = asyncio.ensure_future(client.post("/v1/chat/completions", json=body))
            await asyncio.wait({task}, timeout=rng.random())
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return
        body = _ask("Count to one hundred.", max_tokens=LONG, stream=True)
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            wanted = 2 if phase == "first token" else 5
            async for line in answer.aiter_lines():
                wanted -= line.startswith("data: ")
                if wanted <= 0:
                    break

    async def scenario() -> None:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            gate = asyncio.Semaphore(4)

            async def one(index: int) -> None:
                async with gate:
                    await leave(client, index)

            await asyncio.gather(*(one(index) for index in range(ROUNDS)))

    asyncio.run(scenario())
    cluster.wait_idle(patience_s=ABORTED_S)
    assert "Traceback" not in cluster.log("smol-1")


def test_sigterm_while_the_model_loads_leaves_nothing(cluster: Cluster):
    with running(config_text(WORKER)) as other:
        other.start("worker", "smol-1")
        wait_for(lambda: other.worker("smol-1").get("state") == "loading", "loading", PATIENCE_S)
        other.signal("smol-1", signal.SIGTERM)
        assert other.wait_exit("smol-1", PATIENCE_S) == 0
        assert "Traceback" not in other.log("smol-1")
        assert not [p for p in other.home.run.iterdir() if p.name.startswith("smol-1")]
