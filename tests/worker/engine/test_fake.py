import asyncio
import gc
import hashlib
import sys

import pytest

from worker.engine.base import run_blocking_startup_work
from worker.engine.fake import FakeEngine
from worker.engine.output import FleetEngine, PromptError, StopRequested

SCRIPT = 'fake:{"tokens": ["a", "b", "c"]}'


def run(engine, case):
    async def started():
        await run_blocking_startup_work(engine.prepare_for_start)
        await engine.start()
        try:
            return await case()
        finally:
            await engine.stop()

    return asyncio.run(started())


def user(content):
    return [{"role": "user", "content": content}]


def test_it_is_one_of_our_engines():
    engine = FakeEngine("m", max_model_len=50)
    assert isinstance(engine, FleetEngine)
    assert engine.can_resume
    assert engine.facts().max_model_len == 50


@pytest.mark.parametrize("options", [{"speed": 1}, {"max_num_seqs": 0}, {"load_s": -1}, {"load_s": "x"}])
def test_options_that_it_does_not_have_are_refused(options):
    with pytest.raises(ValueError, match="options of the fake engine"):
        FakeEngine("m", **options)


def test_a_seed_and_a_temperature_change_nothing():
    engine = FakeEngine("m")

    async def case():
        return [(await engine.chat(user("hi"), seed=seed, temperature=seed)).text for seed in (0, 1)]

    assert len(set(run(engine, case))) == 1


def test_a_resumed_answer_goes_on_with_the_next_token():
    engine = FakeEngine("m")

    async def case():
        whole = await engine.generate(SCRIPT)
        return whole, await engine.generate(SCRIPT, resume_token_ids=whole.tokens[:2])

    whole, rest = run(engine, case)
    assert whole.text == rest.text == "abc"
    assert rest.tokens == whole.tokens[2:]


def test_a_prompt_longer_than_the_context_names_both_numbers():
    engine = FakeEngine("m", max_model_len=5)

    async def case():
        with pytest.raises(PromptError, match="10 tokens > 5 maximum") as error:
            await engine.generate("w" + " w" * 9)
        return error.value.reason

    assert run(engine, case) == "context_length_exceeded"


def test_the_answer_is_cut_to_the_context():
    engine = FakeEngine("m", max_model_len=5)

    async def case():
        return await engine.generate("w w w", max_tokens=100)

    assert run(engine, case).completion_tokens == 2


def test_images_are_refused_in_words():
    engine = FakeEngine("m")

    async def case():
        with pytest.raises(PromptError, match="no images"):
            engine.stream_chat(user("hi"), images=["x"])

    run(engine, case)


def test_one_that_sees_tells_of_each_picture_where_it_stands():
    engine = FakeEngine("m", sees=True)
    parts = [{"type": "text", "text": 'fake:{"echo_prompt": true}'}, {"type": "image"}]
    messages = [{"role": "user", "content": parts}]

    async def case():
        with pytest.raises(PromptError, match="0 pictures came, and there are places for 1"):
            await engine.chat(messages)
        return await engine.chat(messages, images=["data:image/gif;base64,R0lG"])

    sha = hashlib.sha256(b"GIF").hexdigest()
    assert f"true}} [image/gif of 3 bytes, sha256 {sha}] <|im_end|>" in run(engine, case).text
    assert engine.is_mllm


def test_each_start_of_work_is_logged_once(tmp_path):
    log = tmp_path / "starts"
    engine = FakeEngine("m", max_num_seqs=1, max_waiting=1, start_log=str(log))

    async def case():
        await asyncio.gather(
            engine.generate(SCRIPT, request_id="one", attempt=0),
            engine.generate(SCRIPT, request_id="two", attempt=3),
        )
        await engine.generate(SCRIPT)

    run(engine, case)
    assert log.read_text() == "one 0\ntwo 3\n"


def test_loading_takes_its_time_in_pieces_and_can_be_stopped():
    engine = FakeEngine("m", load_s=0.2)
    assert engine.load_progress()[0] == 0
    engine.prepare_for_start()
    assert engine.load_progress()[0] == 1
    other = FakeEngine("m", load_s=600)
    other.request_stop()
    with pytest.raises(StopRequested):
        other.prepare_for_start()


def test_it_must_be_started_before_it_is_asked():
    with pytest.raises(RuntimeError, match="not started"):
        FakeEngine("m").stream_generate("hi")


def test_a_stream_never_iterated_gives_its_slot_back_when_forgotten():
    engine = FakeEngine("m", max_num_seqs=1)

    async def case():
        engine.stream_generate(SCRIPT)
        gc.collect()
        return (await engine.generate(SCRIPT)).text

    assert run(engine, case) == "abc"


def test_forms_where_only_a_gateway_is_installed_are_refused_with_the_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "worker.engine.fake_shapes", None)
    engine = FakeEngine("m")

    async def case():
        return await engine.generate("hi", structured_outputs={"regex": "[ab]"})

    with pytest.raises(PromptError, match="run: scripts/install") as caught:
        run(engine, case)
    assert caught.value.reason == "unsupported"
