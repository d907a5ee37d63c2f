"""The syntax that mlx-lm finds for a model, and each of its parsers behind our channels."""

import asyncio
import json
import pkgutil
from typing import Any

import mlx_lm.tool_parsers
import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper, load

from tests.faults.small_model import make_model
from worker.engine.base import run_blocking_startup_work
from worker.engine.batched import BatchedEngine
from worker.engine.shape import Function, Shape
from worker.engine.structured import for_tokenizer
from worker.engine.syntax import configured, of_tokenizer, special_marks
from worker.parsers.base import REASONING, TEXT, TOOL, Channel, Syntax
from worker.parsers.channels import Channels
from worker.parsers.constrained import constrained

NAMES = [found.name for found in pkgutil.iter_modules(mlx_lm.tool_parsers.__path__)]
ARGUMENTS = {"path": "a", "count": 2}
SAMPLES = {
    "function_gemma": "<start_function_call>call:read{path:<escape>a<escape>,count:2}<end_function_call>",
    "gemma4": '<|tool_call>call:read{path:<|"|>a<|"|>,count:2}<tool_call|>',
    "glm47": "<tool_call>read<arg_key>path</arg_key><arg_value>a</arg_value>"
    "<arg_key>count</arg_key><arg_value>2</arg_value></tool_call>",
    "json_tools": '<tool_call>\n{"name": "read", "arguments": {"path": "a", "count": 2}}\n</tool_call>',
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.read:0<|tool_call_argument_begin|>"
    '{"path": "a", "count": 2}<|tool_call_end|><|tool_calls_section_end|>',
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="read" index="1"<|sep|>'
    '<|open|>argument key="path" type="string"<|sep|>a<|close|>argument<|sep|>'
    '<|open|>argument key="count" type="integer"<|sep|>2<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|>",
    "longcat": "<longcat_tool_call>read<longcat_arg_key>path</longcat_arg_key>"
    "<longcat_arg_value>a</longcat_arg_value><longcat_arg_key>count</longcat_arg_key>"
    "<longcat_arg_value>2</longcat_arg_value></longcat_tool_call>",
    "minicpm5": '<function name="read"><param name="path">a</param><param name="count">2</param></function>',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="read">\n<parameter name="path">a</parameter>\n'
    '<parameter name="count">2</parameter>\n</invoke>\n</minimax:tool_call>',
    "mistral": '[TOOL_CALLS]read[ARGS]{"path": "a", "count": 2}',
    "muse_spark": '<atem:function_calls><atem:invoke name="read">'
    '<atem:parameter name="path">a</atem:parameter><atem:parameter name="count">2</atem:parameter>'
    "</atem:invoke></atem:function_calls>",
    "pythonic": '<|tool_call_start|>[read(path="a", count=2)]<|tool_call_end|>',
    "qwen3_coder": "<tool_call>\n<function=read>\n<parameter=path>\na\n</parameter>\n<parameter=count>\n2\n"
    "</parameter>\n</function>\n</tool_call>",
}
SAMPLES["laguna"] = SAMPLES["glm47"]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "count": {"type": "integer"}},
            },
        },
    }
]


def told(syntax, text, size):
    channels = Channels(syntax, TOOLS)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return [*(part for piece in pieces for part in channels.feed(piece)), *channels.flush()]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("name", NAMES)
def test_each_parser_of_mlx_lm_reads_its_own_form(name, size):
    syntax = configured(Syntax(), name, None)
    parts = told(syntax, f"Look.{SAMPLES[name]}", size)
    assert "".join(part.text for part in parts if part.channel is Channel.TEXT) == "Look."
    (call,) = [part for part in parts if part.channel is Channel.CALL]
    assert (call.name, json.loads(call.text)) == ("read", ARGUMENTS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("body", ["", "nonsense", "{{{", '{"a": ', "<x>", "[[", "\x00"])
def test_fc_68_what_a_parser_cannot_read_is_given_back(name, body):
    """Some are lenient, and find a call in what is none: then that is told, and it is a good one."""
    syntax = configured(Syntax(), name, None)
    start = syntax.edges[TEXT][0][0]
    end = syntax.edges[TOOL][0][0] if syntax.edges[TOOL] else ""
    before, *rest = told(syntax, f"a{start}{body}{end}", 1000)
    assert before.text == "a"
    if all(part.channel is Channel.TEXT for part in rest):
        assert "".join(part.text for part in rest) == f"{start}{body}{end}"
    else:
        assert [isinstance(json.loads(part.text), dict) for part in rest] == [True]


LOOPS = {
    "gemma4": "call:read{path",
    "glm47": "<arg_key>a</arg_key><arg_value>",
    "kimi_k3": '<|open|>call tool="read" index="1"',
    "laguna": "<arg_key>a</arg_key><arg_value>",
    "longcat": "<longcat_arg_key>a</longcat_arg_key><longcat_arg_value>",
    "muse_spark": "<atem:invoke n",
}


@pytest.mark.parametrize("name", NAMES)
def test_fc_68_a_model_in_a_loop_is_text_at_once(name):
    """Their patterns would look at it for minutes, while the worker is deaf."""
    syntax = configured(Syntax(), name, None)
    start = syntax.edges[TEXT][0][0]
    end = syntax.edges[TOOL][0][0] if syntax.edges[TOOL] else ""
    body = LOOPS.get(name, "{[<(") * 4000
    assert "".join(part.text for part in told(syntax, f"{start}{body}{end}", 64)) == f"{start}{body}{end}"


def tokenizer(tmp_path, template, *, special=(), plain=()):
    """The wrapper that mlx-lm makes of a small tokenizer with these further tokens."""
    folder = make_model(tmp_path / "m", template=template)
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    base = document["added_tokens"][0]
    for number, token in enumerate([*special, *plain]):
        entry = {**base, "id": 1000 + number, "content": token, "special": token in special}
        document["added_tokens"].append(entry)
    path.write_text(json.dumps(document))
    found = load(folder)
    assert isinstance(found, TokenizerWrapper)
    return found


def test_marks_are_found_in_template_and_vocabulary(tmp_path):
    template = "{% for tool_call in calls %}<tool_call>{{ tool_call.name }}</tool_call>{% endfor %}"
    syntax = of_tokenizer(tokenizer(tmp_path, template, plain=("<think>", "</think>")))
    assert (syntax.has_tools, syntax.has_reasoning, syntax.opens_reasoning) == (True, True, "<think>")
    assert syntax.edges[REASONING] == (("</think>", TEXT), ("<tool_call>", TOOL))


def test_a_template_alone_may_show_how_a_model_reasons(tmp_path):
    syntax = of_tokenizer(tokenizer(tmp_path, "<think>{{ messages }}</think>"))
    assert (syntax.has_tools, syntax.has_reasoning) == (False, True)
    plain = of_tokenizer(tokenizer(tmp_path / "plain", "{{ messages }}"))
    assert (plain.has_tools, plain.has_reasoning, plain.opens_reasoning) == (False, False, None)


def test_special_tokens_that_calls_are_made_of_are_shown_and_no_others(tmp_path):
    specials = ["[TOOL_CALLS]", "[ARGS]", "[INST]", "<s>"]
    made = tokenizer(tmp_path, "{{ '[TOOL_CALLS]' }}", special=specials)
    assert special_marks(of_tokenizer(made), list(made.get_added_vocab())) == {"[TOOL_CALLS]", "[ARGS]"}


def test_a_configured_name_replaces_what_was_found(tmp_path):
    found = of_tokenizer(tokenizer(tmp_path, "<think></think><tool_call>tool_call.name"))
    assert not configured(found, "none", None).has_tools
    assert configured(found, "none", None).has_reasoning
    assert not configured(found, None, "none").has_reasoning
    assert configured(found, None, "none").has_tools
    assert configured(found, "mistral", "<r> </r>").edges[TEXT] == (
        ("<r>", REASONING),
        ("[TOOL_CALLS]", TOOL),
    )
    assert configured(found, None, None) is found


@pytest.mark.parametrize(("tools", "reasoning"), [("hermse", None), (None, "a b c"), (None, "thinks")])
def test_a_name_that_is_unknown_is_refused_in_words(tools, reasoning):
    with pytest.raises(ValueError, match=r"(tool|reasoning)_parser is"):
        configured(Syntax(), tools, reasoning)


QWEN_LIKE = """
{%- if tools %}<|start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|end|>{% endif %}
{%- for m in messages %}<|start|>{{ m.role }}
{{ m.content }}{% for tool_call in m.tool_calls or [] %}
<tool_call>{{ tool_call.function.name }} {{ tool_call.function.arguments.items() | list }}</tool_call>
{%- endfor %}<|end|>
{% endfor %}<|start|>assistant
{% if enable_thinking %}<think>
{% endif %}"""
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "read", "arguments": "{"}}],
}


def test_a_model_with_tools_and_reasoning_on_the_real_engine(tmp_path):
    folder = make_model(tmp_path / "m", template=QWEN_LIKE + "{# tool_call.name #}{# </think> #}")

    async def case():
        engine = BatchedEngine(str(folder), models=tmp_path, max_num_seqs=2)
        await run_blocking_startup_work(engine.prepare_for_start)
        await engine.start()
        try:
            assert engine.facts().syntax.has_tools
            assert engine.facts().syntax.has_reasoning
            engine.preserve_native_tool_format = True
            history: list[dict[str, Any]] = [{"role": "user", "content": "hi"}, CALLED]
            lengths = {}
            for thinks in (True, False):
                options = {"enable_thinking": thinks}
                stream = engine.stream_chat(history, max_tokens=3, tools=TOOLS, chat_template_kwargs=options)
                items = [item async for item in stream]
                assert items[0].in_reasoning is thinks
                lengths[thinks] = items[0].prompt_tokens
            assert lengths[True] - lengths[False] == len("<think>\n")
        finally:
            await engine.stop()

    asyncio.run(case())


@pytest.mark.parametrize("kind", ["special", "plain"])
def test_marks_of_a_grammar_are_the_models_own_tokens_where_these_are_special(tmp_path, kind):
    marks = ("<tool_call>", "</tool_call>", "<think>", "</think>")
    template = "{# <tool_call> tool_call.name #}"
    made = tokenizer(tmp_path, template, **{kind: marks})
    syntax = constrained(of_tokenizer(made), calls=True)
    assert (syntax.marks(TOOL), syntax.marks(REASONING)) == (marks[:2], marks[2:])
    grammars = for_tokenizer(made, 1100, list(made.eos_token_ids))
    shape = Shape(
        functions=(Function("f", {"type": "object", "properties": {}, "additionalProperties": False}),)
    )
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    for in_reasoning, text in (
        (False, call),
        (False, f"<think>hm</think>\n\n{call}"),
        (True, f"hm</think>{call}"),
    ):
        ids = made.encode(text, add_special_tokens=False)
        assert made.get_added_vocab()["<tool_call>"] in ids
        guide = grammars.guide(shape, syntax, in_reasoning=in_reasoning)
        guide.advance(ids)
        assert guide.over
        channels = Channels(syntax, TOOLS, in_reasoning=in_reasoning)
        parts = [part for part in (*channels.feed(text), *channels.flush()) if part.channel is Channel.CALL]
        assert [(part.name, part.text) for part in parts] == [("f", "{}")]
