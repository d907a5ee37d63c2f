"""Vectors and scores of the engine against mlx-vlm's own, on encoders with random weights."""

import asyncio
import random
from array import array
from contextlib import asynccontextmanager

import pytest

from protocol.messages import Embed, Score
from protocol.values import Task
from tests.mlx import tiny_encoders
from worker.engine.base import EngineBusy, run_blocking_startup_work
from worker.engine.embeddings import EmbeddingsEngine
from worker.engine.output import PromptError

KINDS = {
    "bert-mean": (tiny_encoders.BERT, tiny_encoders.MEAN),
    "bert-cls": (tiny_encoders.BERT, tiny_encoders.CLS),
    "xlm-roberta": (tiny_encoders.XLM_ROBERTA, None),
    "qwen3": (tiny_encoders.QWEN, None),
}
RNG = random.Random(7)


def text(words):
    return " ".join(RNG.choice(["a", "cat", "sat", "on", "mat", "red", "sky", "is"]) for _ in range(words))


TEXTS = [text(RNG.randint(1, 14)) for _ in range(64)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Makes each kind once."""
    root, made = tmp_path_factory.mktemp("encoders"), {}

    def make(name):
        if name not in made:
            config, pooling = (tiny_encoders.RANKER, None) if name == "ranker" else KINDS[name]
            made[name] = tiny_encoders.encoder_folder(root / name, config, pooling)
        return made[name]

    return make


@asynccontextmanager
async def started(path, **options):
    engine = EmbeddingsEngine(str(path), models=path.parent, **options)
    engine.inspect()
    await run_blocking_startup_work(engine.prepare_for_start)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def nothing(_tokens):
    pass


async def embed(engine, inputs, began=nothing, **fields):
    request = Embed(request_id="r", inputs=tuple(inputs), **fields)
    found = await engine.embed(request, "r", began)
    numbers = array("f", found.data).tolist()
    size = found.dimensions
    return [numbers[at : at + size] for at in range(0, len(numbers), size)]


async def score(engine, query, texts, **fields):
    request = Score(request_id="r", attempt=0, queries=(query,), texts=tuple(texts), **fields)
    return (await engine.score(request, "r", nothing)).scores


def encoded(path, *texts):
    """As a tokenizer's own batch, padded."""
    import mlx.core as mx  # noqa: PLC0415 (OpenBLAS came first)
    from transformers import AutoTokenizer  # noqa: PLC0415

    found = AutoTokenizer.from_pretrained(path)(*texts, padding=True, return_tensors="np")
    return {name: mx.array(found[name]) for name in found}


def directly(path, texts):
    """As one calls mlx-vlm: all texts in one batch; and their tokens."""
    from mlx_vlm.embedding_loader import load_embedding_model  # noqa: PLC0415 (OpenBLAS came first)
    from mlx_vlm.models.pooling import read_pooling_config  # noqa: PLC0415

    model = load_embedding_model(path)
    if (pooling := read_pooling_config(path)) is not None:
        model.pooling_config = pooling
    inputs = encoded(path, texts)
    return model(**inputs).text_embeds.tolist(), inputs["attention_mask"].sum().item()


def cosine(one, other):
    return sum(a * b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", list(KINDS))
def test_vectors_are_mlx_vlms_own_in_order_with_length_one(folder, kind):
    counted: list[int] = []

    async def run():
        async with started(folder(kind)) as engine:
            assert engine.facts().task is Task.EMBED
            return await embed(engine, TEXTS, counted.append)

    found = asyncio.run(run())
    expected, tokens = directly(folder(kind), TEXTS)
    assert counted == [tokens]
    assert len(found) == len(TEXTS)
    for ours, theirs in zip(found, expected, strict=True):
        assert cosine(ours, theirs) >= 0.9999
        assert cosine(ours, ours) == pytest.approx(1, abs=1e-5)
    distinct = dict(zip(TEXTS, found, strict=True))
    first, *others = distinct.values()
    assert min(cosine(first, other) for other in others) < 0.99  # or equal ones would prove little


def test_poolings_differ_as_the_files_say(folder):
    async def run(kind):
        async with started(folder(kind)) as engine:
            return (await embed(engine, ["a cat sat"]))[0]

    mean, first = asyncio.run(run("bert-mean")), asyncio.run(run("bert-cls"))
    assert cosine(mean, first) < 0.999


def test_2048_texts_of_several_requests_at_once_are_each_what_they_are_alone(folder):
    texts = [text(1 + number % 9) + f" {number}" for number in range(2048)]

    async def run():
        async with started(folder("bert-mean"), max_num_seqs=4) as engine:
            many, few, alone = await asyncio.gather(
                embed(engine, texts), embed(engine, texts[:3]), embed(engine, [texts[1000]])
            )
            stats = engine.get_stats()
        return many, few, alone, stats

    many, few, alone, stats = asyncio.run(run())
    assert len(many) == 2048
    assert cosine(many[1000], alone[0]) >= 0.9999
    assert all(cosine(one, other) >= 0.9999 for one, other in zip(few, many, strict=False))
    assert stats["texts"] == 2048 + 4
    assert stats["batches"] < 100


def test_dimensions_are_for_models_that_were_made_for_it(folder):
    async def run():
        async with started(folder("qwen3")) as engine:
            whole = (await embed(engine, ["a cat"]))[0]
            cut = (await embed(engine, ["a cat"], dimensions=8))[0]
            length = cosine(whole[:8], whole[:8]) ** 0.5
            assert cut == pytest.approx([number / length for number in whole[:8]], abs=1e-5)
            with pytest.raises(PromptError, match="ask for fewer"):
                await embed(engine, ["a cat"], dimensions=tiny_encoders.HIDDEN + 1)
        async with started(folder("bert-mean")) as engine:
            assert await embed(engine, ["a"], dimensions=tiny_encoders.HIDDEN) == await embed(engine, ["a"])
            with pytest.raises(PromptError, match="not made for shorter"):
                await embed(engine, ["a"], dimensions=8)
        async with started(folder("bert-mean"), engine_options={"matryoshka": True}) as engine:
            assert len((await embed(engine, ["a"], dimensions=8))[0]) == 8

    asyncio.run(run())


def test_token_ids_are_taken_as_they_are(folder):
    async def run():
        async with started(folder("bert-mean")) as engine:
            whole = await engine.tokenize("a cat", special=True, pieces=False)
            by_ids = await embed(engine, (), token_ids=(tuple(whole.ids),))
            assert cosine(by_ids[0], (await embed(engine, ["a cat"]))[0]) >= 0.99999
            with pytest.raises(PromptError, match="beyond this model's") as caught:
                await embed(engine, (), token_ids=((1,), (tiny_encoders.VOCABULARY,)))
            assert caught.value.param == "input[1]"

    asyncio.run(run())


def test_a_text_that_is_too_long_is_named_or_cut(folder):
    long = "x" * 200

    async def run():
        async with started(folder("bert-mean")) as engine:
            with pytest.raises(PromptError, match="maximum context length is 64 tokens") as caught:
                await embed(engine, ["a", long])
            assert (caught.value.reason, caught.value.param) == ("context_length_exceeded", "input[1]")
            cut = await embed(engine, [long, long[:62], "xxx"], most_tokens=2**40)
            assert cosine(cut[0], cut[1]) >= 0.9999
            assert cosine((await embed(engine, [long], most_tokens=5))[0], cut[2]) >= 0.9999
            assert engine.load().running == 0

    asyncio.run(run())


def test_scores_are_mlx_vlms_own(folder):
    import mlx.core as mx  # noqa: PLC0415 (OpenBLAS came first)
    from mlx_vlm.reranker_loader import load_sequence_classification_model  # noqa: PLC0415

    path, texts = folder("ranker"), [*TEXTS[:20], ""]

    async def run():
        async with started(path) as engine:
            assert engine.facts().task is Task.RERANK
            found = await score(engine, "red sky", texts)
            pairs = Score(request_id="r", attempt=0, queries=tuple(texts[:3]), texts=tuple(texts[3:6]))
            each = (await engine.score(pairs, "r", nothing)).scores
            assert each[1] == pytest.approx((await score(engine, texts[1], [texts[4]]))[0], abs=1e-5)
            long = await score(engine, "red", ["x" * 500, "x" * 59])  # [CLS], [SEP] and [SEP] beside three
            assert long[0] == pytest.approx((await score(engine, "red", ["x" * 58]))[0], abs=1e-5)
            cut = await score(engine, "red", ["abc def", "abc"], most_tokens=3)
            assert cut[0] == pytest.approx(cut[1], abs=1e-5)
            assert len(await score(engine, "q" * 60, ["a cat"])) == 1
            for length in (61, 100):  # 61: without room for any of a text
                with pytest.raises(PromptError) as caught:
                    await score(engine, "q" * length, ["a cat"])
                assert caught.value.param == "query"
            return found

    found = asyncio.run(run())
    model = load_sequence_classification_model(path)
    theirs = mx.sigmoid(model(**encoded(path, ["red sky"] * len(texts), texts)).logits[:, 0]).tolist()
    assert list(found) == pytest.approx(theirs, abs=1e-4)
    assert max(found) - min(found) > 0.01


def test_busy_is_said_before_anything_begins_and_who_leaves_gives_the_place_back(folder):
    async def run():
        async with started(folder("bert-mean"), max_num_seqs=1, max_waiting=0) as engine:
            begun = asyncio.Event()
            first = asyncio.create_task(embed(engine, TEXTS * 32, lambda _tokens: begun.set()))
            await begun.wait()
            assert engine.load().running == 1
            with pytest.raises(EngineBusy):
                await embed(engine, ["a"])
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert engine.load().running == 0
            assert len(await embed(engine, ["a"])) == 1

    asyncio.run(run())


def test_a_stopped_engine_starts_again_and_ends_what_was_in_hand(folder):
    async def run():
        async with started(folder("bert-mean")) as engine:
            begun = asyncio.Event()
            task = asyncio.create_task(embed(engine, TEXTS * 32, lambda _tokens: begun.set()))
            await begun.wait()
            await engine.stop()
            with pytest.raises(RuntimeError, match="was stopped"):
                await task
            await engine.start()
            assert len(await embed(engine, ["a"])) == 1

    asyncio.run(run())


def test_what_cannot_work_is_said_in_words(folder, tmp_path):
    path = tiny_encoders.encoder_folder(
        tmp_path / "weighted", tiny_encoders.BERT, {"pooling_mode_weightedmean_tokens": True}
    )

    async def run(where):
        async with started(where):
            pass

    with pytest.raises(ValueError, match="vectors cannot be made here"):
        asyncio.run(run(path))
    with pytest.raises(ValueError, match="the embedded model generates text"):
        EmbeddingsEngine("embedded", models=tmp_path)
    with pytest.raises(ValueError, match="engine_options of the engine 'embeddings'"):
        EmbeddingsEngine(str(path), models=tmp_path, engine_options={"x": 1})
