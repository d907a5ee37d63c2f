"""The serial engine on the embedded model: drafts, quantized caches, and what it refuses."""

import asyncio
import json
import shutil

import pytest

from worker.engine import weights
from worker.engine.base import EngineBusy
from worker.engine.batched import BatchedEngine
from worker.engine.embedded import ensure_embedded
from worker.engine.output import FleetEngine, PromptError, StopRequested
from worker.engine.serial import SerialEngine

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
SEA = [{"role": "user", "content": "Write one sentence about the sea."}]

pytestmark = pytest.mark.usefixtures("untried")


@pytest.fixture(scope="module")
def drafting(runner, make_engine, tiny, tiny_draft):
    options = {"draft_model": str(tiny_draft)}
    context = make_engine(1, 0, SerialEngine, str(tiny), engine_options=options)
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


async def read(stream):
    return [item async for item in stream]


def test_it_is_one_of_ours(drafting):
    assert isinstance(drafting, FleetEngine)
    assert drafting.facts().max_model_len == 8192


def test_proposals_are_counted_so_far_and_in_all(drafting, runner):
    items = runner.run(read(drafting.stream_chat(SEA, max_tokens=60, temperature=0.0, ignore_eos=True)))
    drafts, accepted = items[-1].mtp_drafts, items[-1].mtp_accepted
    assert 60 == items[-1].completion_tokens > accepted > 0
    assert drafts > accepted
    assert [item.mtp_drafts for item in items] == sorted(item.mtp_drafts for item in items)
    assert items[0].mtp_drafts == 0
    whole = runner.run(drafting.chat(SEA, max_tokens=60, temperature=0.0, ignore_eos=True))
    assert (whole.mtp_drafts, whole.mtp_accepted) == (drafts, accepted)


def test_answers_are_those_of_the_batched_engine(drafting, runner, make_engine, tiny):
    """Greedy and seeded; and each goes on where the other one stopped."""

    async def scenario():
        async with make_engine(model=str(tiny)) as batched:
            for how in ({"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.95, "seed": 5}):
                one = await batched.chat(SEA, max_tokens=40, **how)
                other = await drafting.chat(SEA, max_tokens=40, **how)
                assert other.tokens == one.tokens
                rest = await drafting.chat(SEA, max_tokens=40, resume_token_ids=one.tokens[:7], **how)
                assert one.tokens[:7] + rest.tokens == one.tokens
                assert rest.completion_tokens == one.completion_tokens

    runner.run(scenario())


def test_the_embedded_model_says_with_a_draft_what_it_says_without(make_engine, models):
    """With itself as draft: every proposal but those after its end is taken."""
    folder = ensure_embedded(models, lambda done, doing: None)

    async def scenario():
        options = {"draft_model": str(folder), "kv_bits": 8}
        async with make_engine(1, 0, SerialEngine, engine_options=options) as engine:
            answer = await engine.chat(FRANCE, max_tokens=24, temperature=0.0)
            assert "Paris" in answer.text
            assert answer.mtp_drafts - 3 <= answer.mtp_accepted <= answer.mtp_drafts
            assert answer.mtp_accepted >= answer.completion_tokens // 2
            assert engine.get_cache_stats()["prefix_cache_entries"] == 0

    asyncio.run(scenario())


def test_a_second_request_is_refused_at_its_call(drafting, runner):
    async def scenario():
        stream = drafting.stream_chat(SEA, max_tokens=400, ignore_eos=True)
        with pytest.raises(EngineBusy, match="all 1 places"):
            drafting.stream_chat(FRANCE)
        while not (await anext(stream)).tokens:
            pass
        with pytest.raises(EngineBusy):
            drafting.stream_generate("Hello")
        await stream.aclose()
        assert (await drafting.chat(FRANCE, max_tokens=2)).completion_tokens == 2

    runner.run(scenario())


def test_a_long_prompt_is_left_between_two_pieces(drafting, runner):
    async def scenario():
        stream = drafting.stream_generate("many words " * 1500, max_tokens=5)
        await anext(stream)
        await stream.aclose()
        async with asyncio.timeout(60):
            assert (await drafting.chat(FRANCE, max_tokens=2)).completion_tokens == 2

    runner.run(scenario())


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(drafting, runner):
    with pytest.raises(PromptError, match=r"9001 tokens > 8192 maximum"):
        runner.run(drafting.generate("word " * 9000))


def test_a_draft_of_other_tokens_is_refused_before_its_weights_are_read(tiny, models, tmp_path):
    other = shutil.copytree(tiny, tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 49152, "content": "<|more|>"})
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    engine = SerialEngine(str(tiny), models=models, engine_options={"draft_model": str(other)})
    with pytest.raises(ValueError, match=r"other tokens than the model \(49153 and 49152.* same family"):
        engine.prepare_for_start()
    asyncio.run(engine.stop())


def test_a_stop_while_loading_takes_effect_in_the_draft_too(models, tiny, tiny_draft, monkeypatch):
    engine = SerialEngine(str(tiny), models=models, engine_options={"draft_model": str(tiny_draft)})
    loads = []

    def counting(arrays):
        loads.append(arrays)
        for piece in split(arrays):
            if len(loads) == 2:
                engine.request_stop()
            yield piece

    split = weights._pieces
    monkeypatch.setattr(weights, "_pieces", counting)
    with pytest.raises(StopRequested, match="reading the draft model"):
        engine.prepare_for_start()
    asyncio.run(engine.stop())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"draft": "x"}, "unknown field `draft`"),
        ({"kv_bits": 3}, r"\$\.kv_bits"),
        ({"num_draft_tokens": 0}, r"\$\.num_draft_tokens"),
        ({"draft_model": "/nowhere"}, "/nowhere"),
        ({"max_kv_size": 64, "kv_bits": 8}, "exclude one another"),
        ({"max_kv_size": 64, "draft_model": "x"}, "exclude one another"),
    ],
)
def test_options_that_cannot_work_are_refused_in_words(models, options, words):
    with pytest.raises(ValueError, match=words):
        SerialEngine("embedded", models=models, engine_options=options)


def test_the_batched_engine_names_who_can(models):
    with pytest.raises(ValueError, match=r'remove kv_bits, or take engine = "serial"'):
        BatchedEngine("embedded", models=models, engine_options={"kv_bits": 8})
