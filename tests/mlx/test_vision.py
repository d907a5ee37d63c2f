"""Pictures through the engine for models that see: alone, together, a second time."""

import asyncio
import base64
import io
import json
import shutil

import pytest

from protocol.config import WorkerConfig
from tests.mlx.tiny_vision import BLIND, COLOURS, other_folder, picture
from worker.engine import vision_loading, vision_prompt
from worker.engine.batched import BatchedEngine
from worker.engine.load import make_engine as engine_of
from worker.engine.output import PromptError
from worker.engine.serial import SerialEngine
from worker.engine.vision import VisionEngine
from worker.engine.vision_network import VisionNetwork

WILD = 3.0
"""A temperature at which the model is in doubt."""


def url(colour, width=56, height=56):
    data = io.BytesIO()
    picture(colour, width, height).save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def turn(pictures=1, text="What do you see?"):
    return [{"role": "user", "content": [*([{"type": "image"}] * pictures), {"type": "text", "text": text}]}]


def ask(engine, *images, text="What do you see?", temperature=0.0, max_tokens=16, **options):
    return engine.chat(turn(len(images), text), max_tokens, temperature, images=list(images), **options)


REQUESTS = [
    (url("yellow", 84, 56),),
    (),
    (url("red"), url("blue", 56, 112)),
    (url("black", 28, 28), url("red")),
]


@pytest.fixture(scope="module")
def started(make_engine, untried, seeing, runner):
    """The engine that the module shares, and its event loop."""
    context = make_engine(4, 0, VisionEngine, str(seeing))
    yield runner, runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


@pytest.fixture
def fresh(started):
    """The same with nothing kept, as two functions: to run a coroutine, and to ask."""
    runner, engine = started
    engine.clear_runtime_caches()
    runner.run(engine.tokenize("", special=False, pieces=False))
    return runner.run, engine


def runs(engine):
    return engine.get_cache_stats()["encoder_runs"]


def test_it_says_what_is_on_the_picture(fresh):
    run, engine = fresh
    assert [run(ask(engine, url(colour))).text for colour in COLOURS] == list(COLOURS)
    assert run(ask(engine)).text == BLIND
    assert engine.is_mllm


def own_numbers(folder):
    """Tokens of a prompt with pictures of several sizes, and log-probabilities of what comes next."""
    from mlx_vlm import load  # noqa: PLC0415
    from mlx_vlm.utils import prepare_inputs  # noqa: PLC0415

    model, processor = load(str(folder))
    shown = [picture("red", 84, 56), picture("blue", 56, 140)]
    text = processor.tokenizer.apply_chat_template(turn(2), tokenize=False, add_generation_prompt=True)
    inputs = prepare_inputs(processor, images=shown, prompts=text)
    ids = inputs.pop("input_ids")
    made = model.get_input_embeddings(ids, inputs["pixel_values"], image_grid_thw=inputs["image_grid_thw"])
    logits = model.language_model(ids, made.inputs_embeds, position_ids=made.position_ids).logits[0, -1]
    return ids.shape[1], (logits - logits.logsumexp()).tolist()


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
def test_the_numbers_are_those_of_mlx_vlm_itself(make_engine, untried, seeing, tmp_path, kind, monkeypatch):
    """So places and positions are right. A kind that nobody tried before is compared when it is loaded."""
    monkeypatch.setattr(vision_loading, "SEEING", frozenset())
    folder = seeing if kind == "qwen2_vl" else other_folder(tmp_path / "other")
    tokens, theirs = own_numbers(folder)

    async def case():
        async with make_engine(2, 0, VisionEngine, str(folder)) as engine:
            answer = await ask(engine, url("red", 84, 56), url("blue", 56, 140), logprobs=20)
            assert answer.prompt_tokens == tokens
            ours = {token_id: logprob for token_id, _text, logprob in answer.logprobs[0].top}
            assert len(ours) == 20
            assert ours == {token_id: pytest.approx(theirs[token_id], abs=1e-3) for token_id in ours}

    asyncio.run(case())


def test_a_model_that_would_see_otherwise_is_not_served(make_engine, untried, seeing, monkeypatch):
    monkeypatch.setattr(vision_loading, "SEEING", frozenset())
    own = VisionNetwork.own_logits
    monkeypatch.setattr(VisionNetwork, "own_logits", lambda self, inputs: -own(self, inputs))

    async def case():
        async with make_engine(2, 0, VisionEngine, str(seeing)):
            pass

    with pytest.raises(ValueError, match="in a way that this version cannot batch"):
        asyncio.run(case())


@pytest.mark.parametrize("options", [{}, {"temperature": WILD, "seed": 7}])
def test_a_batch_of_pictures_and_text_says_what_each_says_alone(fresh, options):
    run, engine = fresh
    options = {**options, "max_tokens": 40, "ignore_eos": True}

    async def together():
        return await asyncio.gather(*(ask(engine, *images, **options) for images in REQUESTS))

    alone = []
    for images in REQUESTS:
        engine.clear_runtime_caches()
        alone.append(run(ask(engine, *images, **options)))
    engine.clear_runtime_caches()
    batch = run(together())
    assert [each.tokens for each in batch] == [each.tokens for each in alone]
    again = run(together())
    assert [each.tokens for each in again] == [each.tokens for each in alone]
    assert len({tuple(each.tokens) for each in alone}) == len(REQUESTS)
    if "seed" in options:
        other = run(ask(engine, *REQUESTS[0], **{**options, "seed": 8}))
        assert other.tokens != alone[0].tokens


def test_a_picture_that_was_seen_costs_the_encoder_nothing_and_another_never_passes_for_it(fresh):
    run, engine = fresh
    before = runs(engine)
    first = run(ask(engine, url("red")))
    second = run(ask(engine, url("red")))
    assert (second.text, second.cached_tokens) == (first.text, first.prompt_tokens - 1)
    other_words = run(ask(engine, url("red"), text="And what is this?"))
    assert other_words.text == first.text
    assert runs(engine) == before + 1
    other = run(ask(engine, url("blue")))
    assert other.text == "blue"
    assert other.cached_tokens < first.prompt_tokens - 20  # the words before the picture at most
    assert runs(engine) == before + 2


def test_when_the_numbers_of_pictures_begin_anew_nobody_sees_it(fresh, monkeypatch):
    """Those who are being answered meanwhile go on, and no prefix passes for one of another picture."""
    run, engine = fresh
    options = {"max_tokens": 12, "ignore_eos": True, "temperature": WILD, "seed": 5}
    places = engine._host.loaded.model.reader._places
    begin, half = places._vocabulary, 100  # numbers: room for the four that are in hand at once
    monkeypatch.setattr(vision_prompt, "_HALVES", (begin + half, begin + 2 * half))
    monkeypatch.setattr(places, "_next", begin)
    forgotten, forget = [], places._forget
    monkeypatch.setattr(places, "_forget", lambda: forgotten.append(forget()))
    rounds = [[url(colour, width, 112) for colour in list(COLOURS)[:4]] for width in range(84, 168, 28)] * 2

    async def together(images):
        return await asyncio.gather(*(ask(engine, image, **options) for image in images))

    found = [[each.tokens for each in run(together(images))] for images in rounds]
    assert len(forgotten) > 2
    for images, answers in zip(rounds, found, strict=True):
        engine.clear_runtime_caches()
        assert [run(ask(engine, image, **options)).tokens for image in images] == answers


def test_what_the_encoder_made_outlives_the_prefixes(fresh):
    run, engine = fresh
    red, before = run(ask(engine, url("red"))), runs(engine)
    both = run(ask(engine, url("blue"), url("red")))
    assert runs(engine) == before + 1
    assert both.cached_tokens < red.prompt_tokens


def test_an_answer_goes_on_from_where_another_attempt_was(fresh):
    run, engine = fresh
    options = {"temperature": WILD, "seed": 3, "max_tokens": 30, "ignore_eos": True}
    whole = run(ask(engine, url("green"), **options))
    for said in (1, 7, 20):
        engine.clear_runtime_caches()
        rest = run(ask(engine, url("green"), resume_token_ids=whole.tokens[:said], **options))
        assert rest.tokens == whole.tokens[said:]
        assert rest.text == whole.text


def test_stop_strings_penalties_and_grammars_beside_pictures(fresh):
    run, engine = fresh
    assert run(ask(engine, url("yellow"), stop=["llo"])).text == "ye"
    once = run(ask(engine, url("red"), repetition_penalty=50.0, presence_penalty=2.0, ignore_eos=True))
    assert once.text.count("red") == 1
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["green", "red"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    shaped = run(ask(engine, url("red"), max_tokens=60, structured_outputs={"json": schema}))
    assert json.loads(shaped.text)["colour"] in ("green", "red")


def test_what_the_engine_cannot_see_is_refused_in_words(fresh):
    run, engine = fresh

    def refused(messages, images, **options):
        with pytest.raises(PromptError) as refusal:
            run(engine.chat(messages, 4, images=images, **options))
        return str(refusal.value)

    assert "picture 2 (9 bytes" in refused(turn(2), [url("red"), "data:image/png;base64,bm8gaW1hZ2Uh"])
    assert "picture 1 is not of the form" in refused(turn(1), ["/etc/hostname"])
    assert "2 pictures came, and the conversation has 1 places" in refused(turn(1), [url("red")] * 2)
    assert "must not have the mark '<|image_pad|>'" in refused(turn(0, "so: <|image_pad|>"), [])
    assert "send some of their frames" in refused(turn(0), [], videos=["/tmp/film.mp4"])
    assert "no part of type 'input_audio'" in refused(
        [{"role": "user", "content": [{"type": "input_audio"}]}], []
    )
    assert run(ask(engine, url("red"))).text == "red"


def test_fc_10_nothing_is_kept_where_it_is_switched_off(make_engine, untried, seeing):
    """With the prefix cache the encoder's goes, too, and the status says so."""

    async def case():
        async with make_engine(2, 0, VisionEngine, str(seeing), prefix_cache_mb=0) as engine:
            answers = [await ask(engine, url("red")) for _ in range(2)]
            stats = engine.get_cache_stats()
            assert [(each.text, each.cached_tokens) for each in answers] == [("red", 0)] * 2
            assert stats["encoder_runs"] == 2
            kept = {name: value for name, value in stats.items() if name.endswith(("entries", "bytes"))}
            assert set(kept.values()) == {0}

    asyncio.run(case())


def test_pictures_are_looked_at_again_when_their_rows_had_to_go(make_engine, untried, seeing):
    """Three answers grow beyond what the cache may hold, and nothing is kept beside it."""
    said = {"temperature": 2.0, "seed": 5, "max_tokens": 400, "ignore_eos": True}
    images = [url("red"), url("green", 84, 56), url("blue", 112, 112)]
    options = {"prefix_cache_mb": 0, "kv_tokens": 950}

    async def case():
        async with make_engine(4, 0, VisionEngine, str(seeing), **options) as engine:
            alone = [(await ask(engine, image, **said)).tokens for image in images]
            assert runs(engine) == 3
            together = await asyncio.gather(*(ask(engine, image, **said) for image in images))
            assert [each.tokens for each in together] == alone
            assert engine.get_stats()["num_preemptions"] > 0
            assert runs(engine) > 6

    asyncio.run(case())


def test_the_encoder_keeps_within_its_bounds(make_engine, untried, seeing):
    async def case():
        options = {"prefix_cache_mb": 0, "engine_options": {"encoder_cache_mb": 1}}
        async with make_engine(2, 0, VisionEngine, str(seeing), **options) as engine:
            for width in range(28, 28 + 28 * 8, 28):
                for colour in COLOURS:
                    assert (await ask(engine, url(colour, width, 224), max_tokens=1)).completion_tokens == 1
            stats = engine.get_cache_stats()
            assert 0 < stats["encoder_cache_bytes"] <= stats["encoder_cache_max_bytes"] == 1 << 20

    asyncio.run(case())


def test_options_that_do_not_exist_are_named(tmp_path):
    with pytest.raises(ValueError, match="engine_options of the engine 'vision'"):
        VisionEngine("x", models=tmp_path, engine_options={"eyes": 2})
    with pytest.raises(ValueError, match="keeps no prefixes on disk"):
        VisionEngine("x", models=tmp_path, prefix_cache_disk_mb=5)


def test_the_folder_chooses_the_engine(seeing, tiny, models):
    def chosen(folder, **options):
        return type(engine_of(WorkerConfig(id="w", model=str(folder), **options), models))

    assert chosen(seeing) is chosen(seeing, engine="vision") is VisionEngine
    assert chosen(seeing, engine="serial") is SerialEngine
    assert chosen(tiny) is BatchedEngine


def test_a_template_in_the_file_of_older_models_is_found(make_engine, untried, seeing, tmp_path):
    folder = shutil.copytree(seeing, tmp_path / "older")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": config.pop("chat_template")}))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))

    async def case():
        async with make_engine(2, 0, VisionEngine, str(folder)) as engine:
            assert (await ask(engine, url("red"))).text == "red"

    asyncio.run(case())


def test_what_is_kept_of_pictures_counts_as_memory(seeing, tmp_path):
    sizes = [
        VisionEngine(str(seeing), models=tmp_path, engine_options={"encoder_cache_mb": kept}).inspect()
        for kept in (0, 64)
    ]
    assert sizes[1] - sizes[0] == 64


def test_what_cannot_see_is_told_so_when_it_is_loaded(tiny, tmp_path):
    engine = VisionEngine(str(tiny), models=tmp_path)
    with pytest.raises(ValueError, match="is not of a model that sees"):
        engine.prepare_for_start()
    asyncio.run(engine.stop())
