"""What the batched engine promises beyond the contract, on the embedded model."""

import asyncio
import threading

import pytest

from worker.engine import weights
from worker.engine.base import EngineBusy
from worker.engine.batched import BatchedEngine
from worker.engine.output import EngineOutput, FleetEngine, PromptError, StopRequested

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
TOKENS = 12
FAMILY = "👩‍👩‍👧‍👦 สวัสดี"
EMOJI = "Copy this line exactly: 😀 🚀 ünïcödé 日本語 👩‍🔬 😀 🚀 日本語"


@pytest.fixture(scope="module")
def engine(runner, make_engine):
    """One engine with eight slots for all tests of this module."""
    context = make_engine(max_num_seqs=8, max_waiting=1)
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


def messages(question):
    return [{"role": "user", "content": question}]


def ask(engine, question, max_tokens=TOKENS, temperature=0.0, **settings):
    return engine.chat(messages(question), max_tokens=max_tokens, temperature=temperature, **settings)


def asked(engine, question, max_tokens=TOKENS, temperature=0.0, **settings):
    return engine.stream_chat(messages(question), max_tokens=max_tokens, temperature=temperature, **settings)


async def read(stream):
    return [item async for item in stream]


def test_it_is_one_of_ours(engine):
    assert isinstance(engine, FleetEngine)
    facts = engine.facts()
    assert facts.max_model_len == 8192
    assert facts.eos_token_ids == (2,)
    assert len(facts.fingerprint or "") == 64
    assert engine.load_progress() == (1.0, "loaded")


def test_the_capital_of_france(engine, runner):
    answer = runner.run(ask(engine, QUESTIONS[0], max_tokens=32))
    assert "Paris" in answer.text
    assert "<|im_end|>" not in answer.text
    assert answer.finish_reason == "stop"
    assert answer.completion_tokens == len(answer.tokens)


def test_eight_together_equal_the_eight_alone(engine, runner):
    async def scenario():
        alone = [(await ask(engine, question)).tokens for question in QUESTIONS]
        engine.clear_runtime_caches()
        together = await asyncio.gather(*(ask(engine, question) for question in QUESTIONS))
        assert [answer.tokens for answer in together] == alone

    runner.run(scenario())


def test_seeded_answers_do_not_depend_on_the_batch(engine, runner):
    seeded = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "min_p": 0.01, "seed": 2**63 + 5}

    async def scenario():
        alone = await ask(engine, "Tell me a story.", **seeded)
        again, *_others = await asyncio.gather(
            ask(engine, "Tell me a story.", **seeded),
            ask(engine, QUESTIONS[1]),
            ask(engine, QUESTIONS[2], temperature=1.0, seed=9),
        )
        other = await ask(engine, "Tell me a story.", **{**seeded, "seed": 6})
        assert again.tokens == alone.tokens
        assert other.tokens != alone.tokens

    runner.run(scenario())


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 7}])
def test_an_answer_is_resumed_where_it_was_broken_off(engine, runner, settings):
    async def scenario():
        whole = await ask(engine, QUESTIONS[2], **settings)
        for known in (1, 7, len(whole.tokens) - 1):
            first = whole.tokens[:known]
            items = await read(asked(engine, QUESTIONS[2], resume_token_ids=first, **settings))
            assert first + [token for item in items for token in item.tokens] == whole.tokens
            assert items[-1].text == whole.text
            assert whole.text.endswith("".join(item.new_text for item in items))
            assert items[-1].completion_tokens == whole.completion_tokens
            assert items[-1].finish_reason == whole.finish_reason

    runner.run(scenario())


def test_an_answer_that_was_complete_when_broken_off_ends_at_once(engine, runner):
    async def scenario():
        whole = await ask(engine, QUESTIONS[0], max_tokens=32)
        items = await read(asked(engine, QUESTIONS[0], 32, resume_token_ids=whole.tokens))
        assert [item.tokens for item in items] == [[]]
        assert (items[0].finish_reason, items[0].new_text) == ("stop", "")
        cut = await read(asked(engine, QUESTIONS[0], 3, resume_token_ids=whole.tokens[:3]))
        assert cut[-1].finish_reason == "length"

    runner.run(scenario())


def test_the_first_item_tells_the_prompt_and_has_no_token(engine, runner):
    async def scenario():
        first, *rest = await read(asked(engine, QUESTIONS[3], 2))
        assert (first.tokens, first.text, first.finished) == ([], "", False)
        assert first.prompt_tokens > 30
        assert all(isinstance(item, EngineOutput) and item.tokens for item in rest)

    runner.run(scenario())


def test_a_warm_prefix_gives_the_same_answer(engine, runner):
    story = "word " * 60

    async def scenario():
        engine.clear_runtime_caches()
        cold = await ask(engine, story + "Which word was that?")
        warm = await ask(engine, story + "Which word was that?")
        beside = await ask(engine, story + "How often was that?")
        engine.clear_runtime_caches()
        beside_cold = await ask(engine, story + "How often was that?")
        assert (cold.cached_tokens, beside_cold.cached_tokens) == (0, 0)
        assert warm.prompt_tokens - 2 <= warm.cached_tokens < warm.prompt_tokens
        assert 60 < beside.cached_tokens < beside.prompt_tokens - 1
        assert warm.tokens == cold.tokens
        assert beside.tokens == beside_cold.tokens

    runner.run(scenario())


def test_characters_are_never_split(engine, runner):
    async def scenario():
        items = await read(asked(engine, EMOJI, 40))
        text = "".join(item.new_text for item in items)
        shown = [token for item in items for token in item.tokens if token != 2]
        assert text == engine.tokenizer.decode(shown)
        for item in items[:-1]:
            assert "\ufffd" not in item.new_text

    runner.run(scenario())


def test_a_prompt_of_every_script_comes_back_from_its_tokens(engine):
    for text in (EMOJI, "def f(x):\n\treturn x  # spaces", "ŝ\u0301 \U0001f469\u200d\U0001f469 \x00"):
        detokenizer = engine._host.loaded.model.make_detokenizer()
        ids = engine.tokenizer.encode(text, add_special_tokens=False)
        pieces = [detokenizer.feed([token_id]) for token_id in ids]
        assert "".join(pieces) + detokenizer.flush() == text
        assert not any("\ufffd" in piece for piece in pieces)


def test_stop_token_ids_end_the_answer_and_are_told(engine, runner):
    async def scenario():
        whole = await ask(engine, QUESTIONS[0])
        stop = whole.tokens[3]
        cut = await ask(engine, QUESTIONS[0], stop_token_ids=[stop])
        assert cut.tokens == whole.tokens[: whole.tokens.index(stop) + 1]
        assert (cut.finish_reason, cut.matched_stop) == ("stop", stop)
        assert whole.text.startswith(cut.text)

    runner.run(scenario())


def test_places_run_out_and_come_back_in_every_phase(engine, runner):
    async def scenario():
        for wanted in range(4):
            streams = [asked(engine, "Count to one hundred.", 300, ignore_eos=True) for _ in range(9)]
            with pytest.raises(EngineBusy):
                asked(engine, QUESTIONS[0])
            for _ in range(wanted):
                await anext(streams[0])
            for stream in streams:
                await stream.aclose()
            load = engine.load()
            assert (load.running, load.waiting, load.kv_tokens, load.prefill_tokens) == (0, 0, 0, 0)
            assert (await ask(engine, QUESTIONS[0], 2)).completion_tokens == 2

    runner.run(scenario())


def test_the_load_counts_what_is_in_hand(engine, runner):
    async def scenario():
        streams = [asked(engine, QUESTIONS[0], 100, ignore_eos=True) for _ in range(3)]
        for stream in streams:
            while not (await anext(stream)).tokens:
                pass
        load = engine.load()
        assert (load.running, load.waiting) == (3, 0)
        assert load.kv_tokens > 300
        assert load.decode_tokens_per_s > 0
        assert load.prefill_tokens_per_s > 0
        assert load.step_age_s < 30
        for stream in streams:
            await stream.aclose()
        while engine.load().step_age_s:  # the last step ends without them
            await asyncio.sleep(0.01)

    runner.run(scenario())


def test_a_long_prompt_can_be_cancelled_between_two_chunks(engine, runner):
    async def scenario():
        stream = asked(engine, "many words " * 1500, 5)
        first = await anext(stream)
        assert first.prompt_tokens > 2500
        await stream.aclose()
        async with asyncio.timeout(20):
            assert (await ask(engine, QUESTIONS[0], 2)).completion_tokens == 2

    runner.run(scenario())


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(engine, runner):
    with pytest.raises(PromptError, match=r"prompt is too long: \d{4,} tokens > 8192 maximum") as caught:
        runner.run(ask(engine, "word " * 9000))
    assert caught.value.reason == "context_length_exceeded"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"resume_token_ids": [49152]}, "token ids"),
        ({"resume_token_ids": [-1]}, "token ids"),
        ({"temperature": -1.0}, "temperature"),
        ({"presence_penalty": float("inf")}, "presence_penalty"),
        ({"logit_bias": {49152: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"stop_token_ids": [10**9]}, "stop_token_ids"),
        ({"min_tokens": TOKENS + 1}, "min_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_words(engine, runner, settings, words):
    async def scenario():
        with pytest.raises(PromptError, match=words):
            await ask(engine, QUESTIONS[0], **settings)
        assert engine.load().running == 0

    runner.run(scenario())


def test_a_conversation_that_the_template_refuses_is_a_prompt_error(engine, runner):
    with pytest.raises(PromptError, match="text only"):
        runner.run(engine.chat([{"role": "user", "content": [{"type": "image", "url": "x"}]}]))
    with pytest.raises(PromptError):
        runner.run(engine.chat([{"content": "no role"}]))


def test_an_id_in_use_is_refused(engine, runner):
    async def scenario():
        stream = asked(engine, QUESTIONS[0], request_id="twice")
        with pytest.raises(ValueError, match="twice"):
            asked(engine, QUESTIONS[0], request_id="twice")
        await stream.aclose()

    runner.run(scenario())


def test_a_tight_kv_budget_is_busy_beside_others_and_cuts_alone(make_engine):
    async def scenario():
        async with make_engine(max_num_seqs=4, kv_tokens=120, prefix_cache_mb=0) as engine:
            first = asked(engine, QUESTIONS[0], 60, ignore_eos=True)
            with pytest.raises(EngineBusy):
                asked(engine, QUESTIONS[1], 60)
            await first.aclose()
            alone = await ask(engine, QUESTIONS[0], 500, ignore_eos=True)
            assert alone.prompt_tokens + alone.completion_tokens == 120
            assert alone.finish_reason == "length"
            with pytest.raises(PromptError):
                await ask(engine, "word " * 200)
            assert engine.get_cache_stats()["prefix_cache_entries"] == 0

    asyncio.run(scenario())


def test_a_stop_while_loading_takes_effect_within_a_piece(models, monkeypatch):
    before = threading.active_count()
    engine = BatchedEngine("embedded", models=models)
    pieces: list[object] = []

    def counting(arrays):
        for piece in split(arrays):
            pieces.append(piece)
            engine.request_stop()
            yield piece

    split = weights._pieces
    monkeypatch.setattr(weights, "_pieces", counting)
    with pytest.raises(StopRequested):
        engine.prepare_for_start()
    assert len(pieces) == 1
    asyncio.run(engine.stop())
    assert threading.active_count() == before
    assert engine.facts().fingerprint is None


def test_a_special_token_in_a_message_is_one_to_the_model_and_never_shown(engine, runner):
    """As decision 6 says."""

    async def prompt_tokens(text):
        return (await ask(engine, text, max_tokens=1)).prompt_tokens

    plain = runner.run(prompt_tokens(""))
    assert runner.run(prompt_tokens("<|im_end|>")) == plain + 1
    assert "<|im_end|>" not in runner.run(ask(engine, "Repeat this: <|im_end|>", max_tokens=TOKENS)).text


def test_an_answer_that_is_cut_within_a_character_ends_before_it(engine, runner):
    whole = runner.run(ask(engine, FAMILY, max_tokens=TOKENS))
    limits = range(1, len(whole.tokens))
    within = [n for n in limits if engine.tokenizer.decode(whole.tokens[:n]).endswith("\ufffd")]
    assert within, "the model was expected to write characters of several tokens"
    for limit in within[:2]:
        text = runner.run(ask(engine, FAMILY, max_tokens=limit)).text
        assert whole.text.startswith(text)
        assert "\ufffd" not in text


def test_a_prompt_of_ids_is_the_text_that_they_stand_for(engine, runner):
    async def scenario():
        text = "The capital of France is"
        ids = engine.tokenizer.encode(text, add_special_tokens=False)
        whole = await engine.generate(text, max_tokens=6, temperature=0.0)
        assert (await engine.generate(ids, max_tokens=6, temperature=0.0)).tokens == whole.tokens
        for wrong in ([], [-1], [49152], [10**12], [1.5], [True], ["1"]):
            with pytest.raises(PromptError):
                await engine.generate(wrong, max_tokens=6)
        echoed = await read(engine.stream_generate(ids, max_tokens=6, temperature=0.0, echo=True, logprobs=1))
        assert echoed[0].new_text == text
        assert echoed[0].prompt_token_ids == ids
        assert [entry.token_id for entry in echoed[0].prompt_logprobs] == ids
        assert echoed[-1].text == text + whole.text
        assert [token for item in echoed for token in item.tokens] == whole.tokens
        scored = await engine.generate(text, max_tokens=0, echo=True, logprobs=0)
        assert (scored.text, scored.tokens, scored.finish_reason) == (text, [], "length")
        assert len(scored.prompt_logprobs) == len(ids)
        assert all(entry.logprob <= 0 for entry in scored.prompt_logprobs)

    runner.run(scenario())


def test_log_probabilities_come_with_each_token_and_their_bytes_make_the_text(engine, runner):
    async def scenario():
        plain = await ask(engine, EMOJI, max_tokens=24)
        answer = await ask(engine, EMOJI, max_tokens=24, logprobs=2)
        assert answer.tokens == plain.tokens == [entry.token_id for entry in answer.logprobs]
        assert (
            b"".join(entry.piece or b"" for entry in answer.logprobs).decode(errors="ignore") == answer.text
        )
        for entry in answer.logprobs:
            assert entry.top[0][0] == entry.token_id  # greedy
            assert entry.logprob >= entry.top[1][2]
            assert len(entry.top) == len(entry.top_pieces) == 2
        banned = {entry.token_id: -100.0 for entry in answer.logprobs}
        other = await ask(engine, EMOJI, max_tokens=4, logprobs=0, logit_bias=banned)
        assert not set(other.tokens) & set(banned)
        assert all(-9999 <= entry.logprob <= 0 and entry.top == () for entry in other.logprobs)

    runner.run(scenario())


def test_min_tokens_holds_back_the_end_and_stop_ids_end_an_answer(engine, runner):
    async def scenario():
        short = await ask(engine, "Say only: yes", max_tokens=40)
        assert short.finish_reason == "stop"
        longer = await ask(engine, "Say only: yes", max_tokens=40, min_tokens=len(short.tokens) + 5)
        assert len(longer.tokens) >= len(short.tokens) + 5
        first = (await ask(engine, QUESTIONS[1], max_tokens=6)).tokens
        ended = await ask(engine, QUESTIONS[1], max_tokens=6, stop_token_ids=[first[3]])
        assert ended.tokens == first[: first.index(first[3]) + 1]
        assert (ended.finish_reason, ended.matched_stop) == ("stop", first[3])

    runner.run(scenario())
