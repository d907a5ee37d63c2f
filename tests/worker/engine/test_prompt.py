"""Conversations and texts to ids."""

import pytest

from worker.engine.output import PromptError
from worker.engine.prompt import PromptReader, flat_message


class LetterTokenizer:
    """One id a letter; the template joins the messages' contents."""

    has_chat_template = True

    def encode(self, text, add_special_tokens):
        return [1] * add_special_tokens + [ord(letter) for letter in text]

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
    assert flat_message(CALL, False) == {"role": "assistant", "content": '[call add: {"a": 1}]'}
    assert flat_message(RESULT, False) == {"role": "user", "content": "[result of add]\n2"}


def test_tool_messages_stay_as_they_are_where_the_model_has_a_form_for_them():
    assert flat_message(CALL, True) == CALL
    assert flat_message(RESULT, True) == RESULT
