"""Answers that follow a schema, a pattern or a grammar, and forced calls, on the embedded model.

STUDIOFLEET_SCHEMAS sets how many random schemas are tried.
"""

import asyncio
import json
import os
import re
from typing import Any

import jsonschema
import pytest

from tests.mlx.random_schemas import random_schema
from worker.engine.output import PromptError
from worker.engine.serial import SerialEngine

SCHEMAS = int(os.environ.get("STUDIOFLEET_SCHEMAS", "10"))
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 16}, "unit": {"$ref": "#/$defs/unit"}},
            "required": ["city", "unit"],
            "$defs": {"unit": {"enum": ["C", "F"]}},
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
DRAWN = {"temperature": 1.0, "top_p": 1.0, "seed": 3}


@pytest.fixture(scope="module")
def engine(runner, make_engine):
    context = make_engine(max_num_seqs=16, max_waiting=SCHEMAS)
    yield runner.run(context.__aenter__())
    runner.run(context.__aexit__(None, None, None))


def ask(engine, text, max_tokens=120, temperature=0.0, **settings):
    messages = [{"role": "user", "content": text}]
    return engine.chat(messages, max_tokens=max_tokens, temperature=temperature, **settings)


def outputs(**kinds):
    return {"structured_outputs": kinds}


def check(text, schema=PERSON):
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def called(text):
    return [json.loads(found) for found in re.findall("<tool_call>\n(.*?)\n</tool_call>", text, re.DOTALL)]


@pytest.mark.timeout(600 + 20 * SCHEMAS)
def test_random_schemas_at_temperature_1(engine, runner):
    slots = asyncio.Semaphore(16)

    async def one(seed):
        schema = random_schema(seed)
        text = f"Give an example of a value of this JSON schema: {json.dumps(schema)}"
        async with slots:
            answer = await ask(engine, text, 400, **{**DRAWN, "seed": seed}, **outputs(json=schema))
        if answer.finish_reason == "stop":
            check(answer.text, schema)
        return answer.finish_reason

    async def scenario():
        return await asyncio.gather(*map(one, range(SCHEMAS)))

    ends = runner.run(scenario())
    print(f"\n{ends.count('stop')} of {SCHEMAS} answers came to their end")
    assert ends.count("stop") >= 0.95 * SCHEMAS


def test_each_row_has_its_own_form_and_the_others_none(engine, runner):
    async def scenario():
        free = [
            await ask(engine, "What is the capital of France?", 16),
            await ask(engine, "Tell me a story.", 16, **DRAWN),
        ]
        engine.clear_runtime_caches()
        person, word, phone, grammar, *beside = await asyncio.gather(
            ask(engine, "Describe a person as JSON.", **DRAWN, **outputs(json=PERSON)),
            ask(engine, "Which colour?", **outputs(choice=["red", "green"])),
            ask(engine, "A phone number?", **DRAWN, **outputs(regex=r"\d{3}-\d{4}")),
            ask(engine, "Count.", **DRAWN, **outputs(grammar='root ::= "one" (" two" | " three")+ "."')),
            ask(engine, "What is the capital of France?", 16),
            ask(engine, "Tell me a story.", 16, **DRAWN),
        )
        check(person.text)
        assert word.text in ("red", "green")
        assert re.fullmatch("[0-9]{3}-[0-9]{4}", phone.text)
        assert grammar.finish_reason == "length" or re.fullmatch("one( two| three)+[.]", grammar.text)
        assert [answer.tokens for answer in beside] == [answer.tokens for answer in free]

    runner.run(scenario())


@pytest.mark.parametrize("how", [{}, DRAWN])
def test_it_goes_on_from_any_token(engine, runner, how):
    async def scenario():
        settings = {**how, **outputs(json=json.dumps(PERSON))}
        whole = await ask(engine, "Describe a person as JSON.", **settings)
        check(whole.text)
        for known in (1, 7, len(whole.tokens) - 1, len(whole.tokens)):
            first = whole.tokens[:known]
            rest = await ask(engine, "Describe a person as JSON.", resume_token_ids=first, **settings)
            assert (first + rest.tokens, rest.text) == (whole.tokens, whole.text)

    runner.run(scenario())


def test_an_answer_of_another_form_cannot_go_on(engine, runner):
    async def scenario():
        found: Any = await asyncio.gather(
            ask(engine, "What is the capital of France?", 16),
            ask(engine, "x", **outputs(regex="a+"), resume_token_ids=[504, 504]),
            return_exceptions=True,
        )
        free, other = found
        assert "Paris" in free.text
        assert isinstance(other, PromptError)
        assert other.param == "structured_outputs"

    runner.run(scenario())


def test_calls(engine, runner):
    async def scenario():
        named = {"tool_choice": {"type": "function", "function": {"name": "weather"}}}
        one = {"tool_choice": "required", "parallel_tool_calls": False}
        question = "What is the weather in Paris?"
        tools = [WEATHER, CLOCK]
        for choice in (named, one):
            for how in ({}, DRAWN):
                answer = await ask(engine, question, tools=tools, **choice, **how)
                (call,) = called(answer.text)
                assert answer.finish_reason == "stop"
                if call["name"] == "weather":
                    check(json.dumps(call["arguments"]), WEATHER["function"]["parameters"])
                else:
                    assert call == {"name": "clock", "arguments": {}}
                    assert choice is one
        several = await ask(engine, question, tools=tools, tool_choice="required", **DRAWN)
        assert called(several.text)

    runner.run(scenario())


def test_a_prompt_tells_of_tools_that_its_template_has_no_place_for(engine, runner):
    async def scenario():
        question = "What is the weather in Paris?"
        without = await ask(engine, question, 1)
        told = await ask(engine, question, 1, tools=[WEATHER], tool_choice="required")
        assert told.prompt_tokens > without.prompt_tokens + 30
        turns = [{"role": "user", "content": question}]
        counted = await engine.tokenize_chat(turns, [WEATHER], {}, pieces=False)
        assert len(counted.ids) == told.prompt_tokens

    runner.run(scenario())


def test_min_tokens_and_ignore_eos_end_with_the_form(engine, runner):
    async def scenario():
        for further in ({"ignore_eos": True}, {"min_tokens": 60}):
            answer = await ask(engine, "x", 64, **further, **outputs(choice=["red", "green"]))
            assert (answer.text in ("red", "green"), answer.finish_reason) == (True, "stop")
        long = await ask(engine, "Letters.", 40, min_tokens=20, **DRAWN, **outputs(regex="[a-z ]{1,200}"))
        assert long.completion_tokens >= 20

    runner.run(scenario())


def test_log_probabilities_are_the_models_own(engine, runner):
    async def scenario():
        free = await ask(engine, "Which colour?", 1, logprobs=3)
        bound = await ask(engine, "Which colour?", 4, logprobs=3, **outputs(choice=["zebra"]))
        assert bound.text == "zebra"
        likeliest, first = free.logprobs[0], bound.logprobs[0]
        assert len(bound.logprobs) == bound.completion_tokens
        assert [each[0] for each in first.top] == [each[0] for each in likeliest.top]
        assert first.logprob < likeliest.logprob

    runner.run(scenario())


@pytest.mark.parametrize(
    "kinds", [{"json": {"type": 123}}, {"json": {"not": {}}}, {"regex": "("}, {"grammar": "("}]
)
def test_what_is_no_form_is_refused_and_the_engine_goes_on(engine, runner, kinds):
    async def scenario():
        with pytest.raises(PromptError) as caught:
            await ask(engine, "x", **outputs(**kinds, field="response_format"))
        assert caught.value.param == "response_format"
        assert engine.load().running == 0
        assert "Paris" in (await ask(engine, "What is the capital of France?", 16)).text

    runner.run(scenario())


def test_a_pattern_of_great_cost_ends_its_own_request_only(engine, runner):
    """Whatever it costs is bounded: it is refused, ended in words, or followed."""
    hard = {"type": "string", "pattern": "^((a|b)*a(a|b){12}){3,40}(x+x+)+y$"}

    async def scenario():
        found: Any = await asyncio.gather(
            ask(engine, "What is the capital of France?", 16),
            ask(engine, "x", 16, **DRAWN, **outputs(json=hard)),
            return_exceptions=True,
        )
        free, bound = found
        assert "Paris" in free.text
        assert isinstance(bound, PromptError) or bound.finish_reason in ("stop", "length")

    runner.run(scenario())


def test_a_plain_prompt_can_have_a_form_too(engine, runner):
    async def scenario():
        answer = await engine.generate("The person: ", 120, **DRAWN, **outputs(json=PERSON))
        check(answer.text)

    runner.run(scenario())


@pytest.mark.parametrize("draft", [False, True])
def test_the_serial_engine_says_the_same(runner, make_engine, tiny, tiny_draft, draft):
    async def scenario():
        options = {"draft_model": str(tiny_draft)} if draft else {}
        settings = [{**how, **outputs(json=PERSON)} for how in ({}, DRAWN)]
        async with make_engine(model=str(tiny)) as batched:
            expected = [await ask(batched, "x", 60, **each) for each in settings]
        async with make_engine(1, 0, SerialEngine, str(tiny), engine_options=options) as serial:
            found = [await ask(serial, "x", 60, **each) for each in settings]
        assert [answer.tokens for answer in found] == [answer.tokens for answer in expected]
        if draft:
            assert sum(answer.mtp_accepted for answer in found) > 0

    runner.run(scenario())
