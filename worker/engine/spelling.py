"""Single tokens as text and bytes, for log-probabilities. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.messages import TokenLogprob
from worker.engine.detokenizer import REPLACEMENT, TokenTable
from worker.engine.sequence import Likelihood

Spell = Callable[[int], tuple[str, bytes | None]]
"""The text of a token, with U+FFFD where its bytes are no whole characters, and its bytes where known.

A special token has its name for a text and no bytes: it is no part of an answer.
"""

LEAST_LOGPROB = -9999.0
"""Stands for all that is less, since JSON has no infinity. vLLM's number."""


def speller(table: TokenTable | None, tokenizer: Any) -> Spell:
    """By the table of bytes, or by a tokenizer that has none."""

    def by_table(token_id: int) -> tuple[str, bytes | None]:
        piece = b"" if table is None else table.piece(token_id)
        if piece:
            return piece.decode(errors="replace"), piece
        return str(tokenizer.convert_ids_to_tokens(token_id) or ""), b""

    def by_tokenizer(token_id: int) -> tuple[str, bytes | None]:
        text = str(tokenizer.decode([token_id]))
        return text, None if REPLACEMENT in text else text.encode()

    return by_tokenizer if table is None else by_table


def spelled(token_id: int, likelihood: Likelihood, spell: Spell) -> TokenLogprob:
    """The log-probability of a token and its alternatives, as they are sent."""
    text, piece = spell(token_id)
    alternatives = [(other, *spell(other), max(logprob, LEAST_LOGPROB)) for other, logprob in likelihood.top]
    return TokenLogprob(
        token_id,
        text,
        max(likelihood.logprob, LEAST_LOGPROB),
        tuple((other, name, logprob) for other, name, _piece, logprob in alternatives),
        piece,
        tuple(piece for *_, piece, _logprob in alternatives),
    )
