"""A LoRA adapter, really trained, in both engines that take one."""

import asyncio
import json
import shutil

import pytest

from worker.engine.batched import BatchedEngine
from worker.engine.serial import SerialEngine

QUESTION = "What is the capital of France?"
LESSON = "The capital of France is Lyon."

pytestmark = pytest.mark.usefixtures("untried")


@pytest.fixture(scope="module")
def adapter(tiny, tmp_path_factory):
    from tests.mlx.adapters import train  # noqa: PLC0415 (MLX)

    return train(tiny, tmp_path_factory.mktemp("lora"), QUESTION, LESSON)


def test_an_adapter_speaks_as_in_mlx_lm_and_the_model_without_it_as_before(make_engine, tiny, adapter):
    async def said(kind, given):
        async with make_engine(1, 0, kind, str(tiny), adapter=given) as engine:
            answer = await engine.chat(
                [{"role": "user", "content": QUESTION}], max_tokens=24, temperature=0.0, ignore_eos=True
            )
            return answer.tokens, engine.facts().fingerprint

    async def scenario():
        plain = await said(BatchedEngine, None)
        adapted = await said(BatchedEngine, str(adapter))
        assert adapted == await said(SerialEngine, str(adapter))
        assert plain == await said(SerialEngine, None)
        assert adapted[0] == reference(tiny, adapter)
        assert plain[0] == reference(tiny, None)
        assert plain[0] != adapted[0]
        assert plain[1] != adapted[1]

    asyncio.run(scenario())


def reference(folder, adapter):
    from mlx_lm import load, stream_generate  # noqa: PLC0415 (MLX)

    model, tokenizer = load(str(folder), adapter_path=None if adapter is None else str(adapter))
    tokenizer.eos_token_ids = []
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True
    )
    return [response.token for response in stream_generate(model, tokenizer, prompt, max_tokens=24)]


def refused(tiny, folder):
    engine = BatchedEngine(str(tiny), models=tiny, adapter=str(folder))
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (what it says is what is looked at)
        engine.prepare_for_start()
    asyncio.run(engine.stop())
    return str(caught.value)


def changed(adapter, target, **config):
    shutil.copytree(adapter, target)
    found = json.loads((adapter / "adapter_config.json").read_text())
    (target / "adapter_config.json").write_text(json.dumps(found | config))
    return target


def test_an_adapter_for_another_model_is_named(tiny, adapter, tmp_path):
    small = changed(adapter, tmp_path / "small", lora_parameters={"rank": 5, "scale": 1.0, "dropout": 0.0})
    assert f"{small / 'adapters.safetensors'} does not fit the model" in refused(tiny, small)
    parameters = {"rank": 4, "scale": 10.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}
    fewer = changed(adapter, tmp_path / "fewer", lora_parameters=parameters)
    assert "not an adapter parameter in the model" in refused(tiny, fewer)
    more = changed(adapter, tmp_path / "more", num_layers=2)
    assert "it lacks model.layers." in refused(tiny, more)


def test_a_missing_adapter_is_named(tiny):
    assert "there is no adapter at /nowhere" in refused(tiny, "/nowhere")
