"""Ids to text, never splitting a character."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.detokenizer import (
    ByteDetokenizer,
    TokenTable,
    WindowDetokenizer,
    byte_alphabet,
    token_table,
)

SINGLE_BYTES = TokenTable([bytes([value]) for value in range(256)])


def pieces_of(detokenizer, token_ids):
    return [detokenizer.feed([token_id]) for token_id in token_ids] + [detokenizer.flush()]


@given(st.text())
def test_any_text_cut_into_bytes_comes_back_whole(text):
    pieces = pieces_of(ByteDetokenizer(SINGLE_BYTES), text.encode())
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@given(st.binary(), st.lists(st.integers(0, 20)))
def test_any_bytes_however_cut_give_what_the_whole_gives(data, cuts):
    detokenizer = ByteDetokenizer(SINGLE_BYTES)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [detokenizer.feed(data[a:b]) for a, b in pairwise(places)]
    assert "".join(pieces) + detokenizer.flush() == data.decode("utf-8", "replace")


def test_an_incomplete_character_is_held_back_and_shown_at_the_end():
    detokenizer = ByteDetokenizer(SINGLE_BYTES)
    assert [detokenizer.feed([byte]) for byte in "😀".encode()] == ["", "", "", "😀"]
    assert detokenizer.feed("é".encode()[:1]) == ""
    assert detokenizer.flush() == "\ufffd"


def test_bytes_that_can_never_be_a_character_are_replaced_at_once():
    detokenizer = ByteDetokenizer(SINGLE_BYTES)
    assert detokenizer.feed([0xFF]) == "\ufffd"
    assert detokenizer.feed([0xC3]) == ""
    assert detokenizer.feed([0x41]) == "\ufffdA"


def test_the_alphabet_has_every_byte_once():
    assert sorted(byte_alphabet().values()) == list(range(256))


def byte_level():
    return {
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"<|end|>": 0, "He": 1, "llo": 2, "Ġyou": 3, "Ã": 4, "©": 5}},
        "added_tokens": [
            {"id": 0, "content": "<|end|>", "special": True},
            {"id": 6, "content": "<tool é>", "special": False},
        ],
    }


def test_a_byte_level_table():
    table = token_table(byte_level())
    assert table is not None
    assert "".join(pieces_of(ByteDetokenizer(table), [1, 2, 3, 4, 5])) == "Hello youé"


def test_special_tokens_and_ids_beyond_the_table_are_not_shown_and_other_added_ones_are():
    table = token_table(byte_level())
    assert table is not None
    assert "".join(pieces_of(ByteDetokenizer(table), [1, 0, 6, 7, 999])) == "He<tool é>"


def test_special_tokens_that_parsers_need_are_shown():
    table = token_table(byte_level(), {"<|end|>"})
    assert table is not None
    assert "".join(pieces_of(ByteDetokenizer(table), [1, 0])) == "He<|end|>"


def sentence_piece(*decoders):
    return {
        "decoder": {"type": "Sequence", "decoders": list(decoders)},
        "model": {"type": "BPE", "vocab": {"▁Hi": 0, "▁you": 1, "<0xC3>": 2, "<0xA9>": 3, "▁": 4}},
    }


def test_a_sentence_piece_table_with_byte_fallback():
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    table = token_table(sentence_piece(replace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip))
    assert table is not None
    assert "".join(pieces_of(ByteDetokenizer(table), [0, 1, 2, 3, 4])) == "Hi youé "
    unstripped = token_table(sentence_piece(replace, {"type": "ByteFallback"}, {"type": "Fuse"}))
    assert unstripped is not None
    assert "".join(pieces_of(ByteDetokenizer(unstripped), [0])) == " Hi"


def test_a_unigram_vocabulary_with_metaspace():
    table = token_table(
        {
            "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
            "model": {"type": "Unigram", "vocab": [["▁a", -1.0], ["b", -2.0]]},
        }
    )
    assert table is not None
    assert "".join(pieces_of(ByteDetokenizer(table), [0, 1, 0])) == "ab a"


def test_other_decoders_have_no_table():
    assert token_table({"decoder": {"type": "WordPiece"}, "model": {"vocab": {"a": 0}}}) is None
    assert token_table({"model": {"vocab": {"a": 0}}}) is None
    assert token_table({}) is None


def decode_bytes(token_ids):
    return bytes(token_ids).decode("utf-8", "replace")


@given(st.text())
def test_the_window_gives_any_text_back(text):
    assert "".join(pieces_of(WindowDetokenizer(decode_bytes), text.encode())) == text


def test_the_window_waits_for_a_character_but_not_for_ever():
    detokenizer = WindowDetokenizer(decode_bytes)
    assert [detokenizer.feed([byte]) for byte in "a😀b".encode()] == ["a", "", "", "", "😀", "b"]
    assert "".join(detokenizer.feed([0x80]) for _ in range(4)) == "\ufffd" * 4
