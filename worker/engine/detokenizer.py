"""Token ids → text, piece by piece, never splitting a character. Pure.

Where a tokenizer says what bytes each of its tokens stands for (byte-level BPE, SentencePiece with
byte fallback), the bytes go through an incremental UTF-8 decoder: it holds back an incomplete
character, three bytes at most, and shows bytes that can never be one as U+FFFD at once. Other
tokenizers are asked to decode a short window of tokens.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\u2581"
REPLACEMENT = "\ufffd"
_PATIENCE = 4
"""So many tokens that seem to end within a character are waited for, since some end in U+FFFD for good."""


class Detokenizer(Protocol):
    """The text of one answer. What all calls return, joined, is the text of the ids."""

    def feed(self, token_ids: Sequence[int]) -> str: ...

    def flush(self) -> str: ...


@dataclass(frozen=True)
class TokenTable:
    """The bytes of every token id; special tokens have none, since they are never shown."""

    pieces: Sequence[bytes]
    strip_first_space: bool = False

    def piece(self, token_id: int) -> bytes:
        """Models have more ids than their tokenizer where their matrices are padded."""
        return self.pieces[token_id] if token_id < len(self.pieces) else b""


class ByteDetokenizer:
    """Decodes by a table of bytes."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = table.strip_first_space

    def feed(self, token_ids: Sequence[int]) -> str:
        return self._stripped(self._decoder.decode(b"".join(self._table.piece(i) for i in token_ids)))

    def flush(self) -> str:
        return self._stripped(self._decoder.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class WindowDetokenizer:
    """Decodes the last few tokens again with each new one, and shows by how much the text grew."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._shown = 0
        """So many tokens of the window are shown already; they are its context."""

    def feed(self, token_ids: Sequence[int]) -> str:
        return "".join(self._feed_one(token_id) for token_id in token_ids)

    def _feed_one(self, token_id: int) -> str:
        self._window.append(token_id)
        incomplete = self._decode(self._window).endswith(REPLACEMENT)
        if incomplete and len(self._window) - self._shown < _PATIENCE:
            return ""
        return self.flush()

    def flush(self) -> str:
        before = self._decode(self._window[: self._shown])
        new = self._decode(self._window)[len(before) :]
        self._window = self._window[self._shown :]
        self._shown = len(self._window)
        return new


def token_table(tokenizer: Mapping[str, Any], shown: Collection[str] = ()) -> TokenTable | None:
    """The table of a `tokenizer.json`, or None where its decoder does not work on bytes.

    `shown` are the special tokens that have a text all the same.
    """
    parts = _decoder_parts(tokenizer.get("decoder") or {})
    kinds = [part.get("type") for part in parts]
    vocabulary = _vocabulary(tokenizer.get("model") or {})
    if not vocabulary:
        return None
    if kinds == ["ByteLevel"]:
        alphabet = byte_alphabet()
        return TokenTable(_pieces(tokenizer, vocabulary, lambda token: _byte_level(token, alphabet), shown))
    if "Metaspace" in kinds or {"ByteFallback", "Fuse"} <= set(kinds):
        return TokenTable(_pieces(tokenizer, vocabulary, _sentence_piece, shown), _strips_first_space(parts))
    return None


def _decoder_parts(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder.get("type") == "Sequence":
        return list(decoder.get("decoders") or [])
    return [decoder]


def _strips_first_space(parts: Sequence[Mapping[str, Any]]) -> bool:
    for part in parts:
        if part.get("type") == "Strip" and part.get("content") == " " and part.get("start", 0) > 0:
            return True
        if part.get("type") == "Metaspace":
            return bool(part.get("add_prefix_space", part.get("prepend_scheme", "always") != "never"))
    return False


def _vocabulary(model: Mapping[str, Any]) -> dict[int, str]:
    vocabulary = model.get("vocab") or {}
    if isinstance(vocabulary, Mapping):
        return {token_id: token for token, token_id in vocabulary.items()}
    return {token_id: entry[0] for token_id, entry in enumerate(vocabulary)}


def _pieces(
    tokenizer: Mapping[str, Any],
    vocabulary: dict[int, str],
    to_bytes: Callable[[str], bytes],
    shown: Collection[str],
) -> list[bytes]:
    pieces = {token_id: to_bytes(token) for token_id, token in vocabulary.items()}
    for added in tokenizer.get("added_tokens") or []:
        hidden = added.get("special") and added["content"] not in shown
        pieces[added["id"]] = b"" if hidden else added["content"].encode()
    return [pieces.get(token_id, b"") for token_id in range(max(pieces) + 1)]


def _byte_level(token: str, alphabet: Mapping[str, int]) -> bytes:
    if all(character in alphabet for character in token):
        return bytes(alphabet[character] for character in token)
    return token.encode()


def _sentence_piece(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte is not None:
        return bytes([int(byte[1], 16)])
    return token.replace(_SPACE_MARK, " ").encode()


def byte_alphabet() -> dict[str, int]:
    """The printable characters that stand for bytes in a byte-level vocabulary (GPT-2's scheme)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return alphabet
