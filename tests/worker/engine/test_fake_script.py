import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.fake_script import (
    MOST_WORDS,
    Script,
    WordTokenizer,
    answer_of,
    chat_script,
    read_script,
    render_chat,
    words,
)
from worker.engine.output import PromptError


def pieces(script, prompt="", ignore_eos=False):
    answer = answer_of(script, prompt, ignore_eos)
    return [answer.token(position) for position in range(len(answer))]


def test_a_text_without_the_prefix_has_no_script():
    assert read_script('{"tokens": ["a"]}') == Script()


@pytest.mark.parametrize(
    "text",
    [
        "fake:",
        "fake:nonsense",
        'fake:{"tokns": []}',
        'fake:{"bytes": ["zz"]}',
        'fake:{"repeat": 0}',
        'fake:{"delay_ms": -1}',
    ],
)
def test_a_script_that_cannot_be_used_is_refused_in_words(text):
    with pytest.raises(PromptError, match="the script behind 'fake:' cannot be used") as refused:
        read_script(text)
    assert refused.value.reason == "template"


def test_the_script_is_in_the_last_message_if_that_is_the_users():
    script = {"role": "user", "content": 'fake:{"busy": true}'}
    assert chat_script([{"role": "system", "content": "hi"}, script]).busy
    assert chat_script([script, {"role": "assistant", "content": "hi"}]) == Script()
    assert chat_script([]) == Script()


def test_a_script_in_text_parts_is_read():
    parts = [{"type": "text", "text": "fake:"}, {"type": "text", "text": '{"repeat": 2}'}]
    assert chat_script([{"role": "user", "content": parts}]).repeat == 2


def test_tokens_come_before_bytes_and_the_list_is_repeated():
    script = Script(tokens=("a", "b"), bytes=("f09f", "9880"), repeat=2)
    assert pieces(script) == [b"a", b"b", b"\xf0\x9f", b"\x98\x80"] * 2


def test_an_echo_answers_with_the_prompt_one_token_a_word():
    prompt = render_chat([{"role": "user", "content": "say it again"}])
    assert prompt == "<|im_start|>user\nsay it again<|im_end|>\n<|im_start|>assistant\n"
    answer = pieces(Script(echo_prompt=True), prompt)
    assert b"".join(answer).decode() == prompt
    assert b" it" in answer


def test_the_default_answer_follows_from_the_prompt_alone():
    assert pieces(Script(), "one") == pieces(Script(delay_ms=5), "one")
    assert pieces(Script(), "one") != pieces(Script(), "two")
    assert len(pieces(Script(), "one")) == 64


def test_ignoring_the_end_goes_on_for_ever():
    assert len(answer_of(Script(tokens=("a",)), "", ignore_eos=True)) > 10**9
    assert len(answer_of(Script(tokens=()), "", ignore_eos=True)) == 0


@given(st.text())
def test_words_are_a_partition_of_the_text(text):
    assert "".join(words(text)) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_tokenizer_gives_the_text_back(text):
    tokenizer = WordTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_are_alike_in_all_tokenizers_and_differ_between_words():
    assert WordTokenizer().encode("a b a") == WordTokenizer().encode("a b a")
    assert len(set(WordTokenizer().encode("a b c"))) == 3


@pytest.mark.parametrize(
    "fields",
    [
        "",
        "[]",
        "{",
        '{"repeat": 0}',
        '{"repeat": 4611686018427387904}',
        '{"delay_ms": -1}',
        '{"delay_ms": 1e300}',
        '{"prefill_ms": "1"}',
        '{"block_ms": 1e300}',
        '{"raise_at": -1}',
        '{"raise_at": 1.5}',
        '{"bytes": ["zz"]}',
        '{"bytes": "00"}',
        '{"tokens": [1]}',
        '{"tokens": null, "tokens": {}}',
        '{"tokens": ["\\ud800"]}',
        '{"finish": "tired"}',
        '{"busy": 1}',
        '{"later": true}',
        '{"tokens": ' + "[" * 100_000,
        '{"x": ' * 100_000,
    ],
    ids=lambda fields: fields[:24],
)
def test_a_script_that_makes_no_sense_is_the_requests_fault(fields):
    with pytest.raises(PromptError):
        read_script("fake:" + fields)


def test_a_tokenizer_forgets_the_oldest_words():
    tokenizer = WordTokenizer()
    (first,) = tokenizer.encode("first")
    tokenizer.encode("".join(f" w{number}" for number in range(MOST_WORDS)))
    assert tokenizer.decode([first]) == "\ufffd"
