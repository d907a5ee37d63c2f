"""Conversations and texts to ids."""

import itertools
from typing import Any

import pytest

from worker.engine.output import PromptError
from worker.engine.prompt import PromptReader, template_message, template_variables


class LetterTokenizer:
    """One id a letter; the template joins the messages' contents."""

    has_chat_template = True
    chat_template = "{{ messages }}{{ tools }}"

    def encode(self, text, add_special_tokens):
        return [1] * add_special_tokens + [ord(letter) for letter in text]

    def decode(self, ids, skip_special_tokens):
        return "".join(map(chr, ids))

    def apply_chat_template(self, messages, tools, add_generation_prompt, tokenize):
        if any(message["role"] == "refused" for message in messages):
            raise ValueError("roles must alternate")
        return "".join(message["content"] for message in messages) + ">" * add_generation_prompt


def reader(vocabulary=200):
    return PromptReader(LetterTokenizer(), vocabulary)


def chat(messages, native=False):
    return "".join(map(chr, reader().chat(messages, None, native)))


def test_text_gets_the_tokenizers_special_tokens_and_a_conversation_does_not():
    assert reader().text("a") == [1, 97]
    assert chat([{"role": "user", "content": "a"}]) == "a>"


def test_parts_of_text_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat([{"role": "user", "content": parts}, {"role": "assistant", "content": None}]) == "ab>"


@pytest.mark.parametrize(
    ("messages", "words", "reason"),
    [
        ([{"role": "user", "content": [{"type": "image"}]}], "text only", "template"),
        ([{"role": "refused", "content": "a"}], "roles must alternate", "template"),
        ([{"role": "user", "content": "é" + chr(300)}], "does not know", "tokens"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(messages, words, reason):
    with pytest.raises(PromptError, match=words) as caught:
        chat(messages)
    assert caught.value.reason == reason


def test_a_model_without_template_says_so():
    tokenizer = LetterTokenizer()
    tokenizer.has_chat_template = False
    with pytest.raises(PromptError, match="no chat template"):
        PromptReader(tokenizer, 200).chat([{"role": "user", "content": "a"}], None, False)


@pytest.mark.parametrize("ids", [[], [-1], [200]])
def test_ids_that_would_harm_the_model_are_refused(ids):
    with pytest.raises(PromptError):
        reader().checked(ids, "prompt")
    assert reader().checked([0, 199], "prompt") == [0, 199]


CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": '{"a": 1}'}}],
}
RESULT = {"role": "tool", "name": "add", "tool_call_id": "1", "content": "2"}


def test_tool_messages_become_text():
    assert template_message(CALL, False) == {"role": "assistant", "content": '[call add: {"a": 1}]'}
    assert template_message(RESULT, False) == {"role": "user", "content": "[result of add]\n2"}


def test_tool_messages_stay_as_they_are_where_the_model_has_a_form_for_them():
    call = template_message(CALL, True)
    assert call["tool_calls"] == [{"id": "1", "function": {"name": "add", "arguments": {"a": 1}}}]
    assert template_message(RESULT, True) == RESULT


@pytest.mark.parametrize("arguments", ["{", "", "[1]", None, {"a": 1}, '{"a": 1}'])
def test_fc_69_a_template_always_finds_an_object_for_arguments(arguments):
    call = {"id": "1", "function": {"name": "add", "arguments": arguments}}
    message = template_message({"role": "assistant", "content": "", "tool_calls": [call]}, True)
    assert isinstance(message["tool_calls"][0]["function"]["arguments"], dict)


class StrictTokenizer(LetterTokenizer):
    """A template that wants roles to alternate, and no system."""

    def apply_chat_template(self, messages, tools, add_generation_prompt, tokenize, **_variables):
        roles = [message["role"] for message in messages]
        if "system" in roles:
            raise ValueError("no system, please")
        if any(first == second for first, second in itertools.pairwise(roles)):
            raise ValueError("roles must alternate")
        return "|".join(message["content"] for message in messages)


def test_tools_calls_and_results_are_told_in_words_to_a_template_that_has_no_place_for_them():
    calling: list[dict[str, Any]] = [CALL, RESULT, {"role": "user", "content": "b"}]
    tools = [{"type": "function", "function": {"name": "add"}}]
    told = {}
    for template in ("{{ messages }}", "{{ tools }}{{ messages }}"):
        tokenizer = LetterTokenizer()
        tokenizer.chat_template = template
        told[template] = PromptReader(tokenizer, 2**16).rendered(calling, tools, True)
    assert told["{{ tools }}{{ messages }}"] == "2b>"
    for words in ('{"name": "add"}', '[call add: {"a": 1}]', "[result of add]\n2", "b>"):
        assert words in told["{{ messages }}"]
    without = PromptReader(tokenizer, 2**16).rendered([{"role": "user", "content": "b"}], None, True)
    assert without == "b>"


def test_fc_62_neighbours_of_one_role_are_merged_for_a_template_that_refuses_them():
    strict = PromptReader(StrictTokenizer(), 200)
    turns = [{"role": role, "content": content} for role, content in (("user", "a"), ("user", "b"))]
    assert "".join(map(chr, strict.chat(turns, None, True))) == "a\n\nb"


def test_fc_62_what_a_template_refuses_in_any_form_is_told_in_its_own_words():
    strict = PromptReader(StrictTokenizer(), 200)
    turns = [{"role": role, "content": "x"} for role in ("system", "user", "user")]
    with pytest.raises(PromptError, match="no system, please") as caught:
        strict.chat(turns, None, True)
    assert caught.value.reason == "template"


def test_a_message_that_is_none_is_the_templates_to_refuse():
    with pytest.raises(PromptError, match="does not take this conversation") as caught:
        PromptReader(StrictTokenizer(), 200).chat([{"content": "a"}, {"content": "b"}], None, True)
    assert caught.value.reason == "template"


@pytest.mark.parametrize(
    "options",
    [
        {"chat_template": "{{ 1 }}"},
        {"tokenize": True},
        {"continue_final_message": True, "add_generation_prompt": True},
    ],
)
def test_variables_that_are_not_the_clients_are_refused(options):
    with pytest.raises(PromptError) as caught:
        reader().chat([{"role": "user", "content": "a"}], None, True, options)
    assert caught.value.reason == "settings"


def test_the_clients_variables_reach_the_template():
    assert template_variables({"enable_thinking": False, "nothing": None}) == {"enable_thinking": False}
    assert template_variables({"continue_final_message": True})["add_generation_prompt"] is False


@pytest.mark.parametrize(("text", "inside"), [("x<t>\n", True), ("x<t>\n\n</t>\n", False), ("<t> x", False)])
def test_whether_a_prompt_ends_in_reasoning_is_read_from_its_end(text, inside):
    assert reader().ends_in_reasoning([ord(letter) for letter in text], "<t>") is inside
    assert not reader().ends_in_reasoning([ord(letter) for letter in text], None)
