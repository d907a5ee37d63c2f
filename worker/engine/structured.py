"""Answers that follow a grammar: which tokens may come next, by llguidance."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from worker.engine.grammar import ANY_OBJECT, MOST_PARTS, grammar_of, part_count
from worker.engine.output import PromptError
from worker.engine.shape import Function, Shape
from worker.parsers.base import Syntax

logger = logging.getLogger(__name__)

END_OF_BYTES = 261
"""The token that ends an answer of bytes, for `for_bytes`."""
_STACK_BYTES = 64 * 1024 * 1024
"""Of address space. A chain of a thousand references needs more than a thread has, and llguidance ends the
process where there is none left."""
_LONGEST_WORDS = 400
"""Characters of llguidance's own words in an error."""


class Guide:
    """The state of one answer in its grammar. One thread at a time."""

    def __init__(self, matcher: LLMatcher, vocabulary: int, field: str) -> None:
        self._matcher = matcher
        self._field = field
        self._taken: list[int] = []
        self._mask = allocate_token_bitmask(1, vocabulary)

    @property
    def over(self) -> bool:
        """Nothing but the end can come."""
        return bool(self._matcher.is_stopped())

    def advance(self, answer: Sequence[int]) -> None:
        """Go to behind these tokens, from wherever it is. What follows the end is not looked at.

        Raises `PromptError` for an answer that does not follow the grammar.
        """
        known = _common(self._taken, answer)
        if known < len(self._taken) and not self._matcher.rollback(len(self._taken) - known):
            raise self._broken()
        del self._taken[known:]
        for token in answer[known:]:
            if self.over:
                return
            if not self._matcher.consume_token(token):
                raise self._broken()
            self._taken.append(token)

    def allowed(self) -> NDArray[np.uint32]:
        """The tokens that may come next, a bit each. Those that end the answer are among them where it may
        end. Valid until the next call. Raises `PromptError`."""
        fill_next_token_bitmask(self._matcher, self._mask)
        if self._matcher.is_error():
            raise self._broken()
        words: NDArray[np.uint32] = self._mask[0].view(np.uint32)
        return words

    def _broken(self) -> PromptError:
        words = _short(self._matcher.get_error())
        if words.startswith("NoExtensionBias"):
            words = "nothing can come next"
        return PromptError(
            f"the answer cannot go on as {self._field} has it: {words}", "settings", param=self._field
        )


class Grammars:
    """Makes the guides of one model. One thread at a time, but for the first use."""

    def __init__(
        self, make_tokenizer: Callable[[], LLTokenizer], special: Mapping[str, int] | None = None
    ) -> None:
        """`make_tokenizer` takes a second or so; `special` are the tokens of which marks may be."""
        self._make_tokenizer = make_tokenizer
        self._special = special or {}
        self._limits = LLParserLimits(verbose_errors=False)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        return self._make_tokenizer()

    def guide(self, shape: Shape, syntax: Syntax, *, in_reasoning: bool = False) -> Guide:
        """`syntax` is that of the answer (`constrained`). Raises `PromptError`."""
        try:
            return self._guide(shape, syntax, in_reasoning)
        except PromptError as error:
            error.param = error.param or shape.field
            raise

    def _guide(self, shape: Shape, syntax: Syntax, in_reasoning: bool) -> Guide:
        field = shape.field
        if sum(part_count(function.schema) for function in shape.functions) > MOST_PARTS:
            logger.warning("the schemas of the tools have more than %d objects and lists", MOST_PARTS)
            shape = replace(shape, functions=tuple(_any(function) for function in shape.functions))
        matcher = self._matcher(shape, syntax, in_reasoning=in_reasoning)
        if matcher.is_error() and shape.functions:
            shape = self._without_faults(shape, syntax)
            matcher = self._matcher(shape, syntax, in_reasoning=in_reasoning)
        if matcher.is_error():
            raise PromptError(
                f"{field} cannot be followed: {_short(matcher.get_error())}", "settings", param=field
            )
        guide = Guide(matcher, self._tokenizer.vocab_size, field)
        guide.allowed()  # here, where it delays nobody; some allow nothing at all
        return guide

    def _matcher(self, shape: Shape, syntax: Syntax, *, in_reasoning: bool = False) -> LLMatcher:
        """Of a grammar that cannot be followed, it has the fault. Raises `PromptError` for what is none."""
        grammar = grammar_of(shape, syntax, self._token_of, in_reasoning=in_reasoning)
        tokenizer, made = self._tokenizer, list[LLMatcher]()

        def make() -> None:
            made.append(LLMatcher(tokenizer, grammar, log_level=0, limits=self._limits))

        before = threading.stack_size(_STACK_BYTES)
        try:
            thread = threading.Thread(target=make, name="grammar")
            thread.start()
        finally:
            threading.stack_size(before)
        thread.join()
        return made[0]

    def _token_of(self, mark: str) -> int | None:
        token = self._special.get(mark)
        return token if token is not None and self._tokenizer.is_special_token(token) else None

    def _without_faults(self, shape: Shape, syntax: Syntax) -> Shape:
        """Arguments whose schema cannot be followed may be any object: their clients take what they get."""

        def mended(function: Function) -> Function:
            alone = self._matcher(Shape(functions=(function,)), syntax)
            if not alone.is_error():
                return function
            logger.warning("the schema of the tool %.80r: %s", function.name, _short(alone.get_error()))
            return _any(function)

        return replace(shape, functions=tuple(map(mended, shape.functions)))


def for_tokenizer(tokenizer: Any, vocabulary: int, ends: Sequence[int]) -> Grammars:
    """For a tokenizer of mlx-lm's and a model of `vocabulary` tokens, of which `ends` end an answer."""

    def make() -> LLTokenizer:
        from llguidance.hf import from_tokenizer  # noqa: PLC0415 (imports transformers)

        inner = getattr(tokenizer, "_tokenizer", tokenizer)
        try:
            return from_tokenizer(inner, max(vocabulary, len(inner)), list(ends) or None)
        except ValueError as error:
            raise PromptError(
                f"this model's tokenizer cannot follow a grammar: {error}", "unsupported"
            ) from error

    return Grammars(make, tokenizer.get_added_vocab())


def for_bytes() -> Grammars:
    """For text without a model: each byte is a token."""
    return Grammars(lambda: LLTokenizer("byte"))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How far they are alike."""
    if list(other[: len(one)]) == one:
        return len(one)
    return next(i for i, (a, b) in enumerate(zip(one, [*other, None], strict=False)) if a != b)


def _any(function: Function) -> Function:
    return Function(function.name, ANY_OBJECT)


def _short(words: str) -> str:
    return " ".join(words.split())[:_LONGEST_WORDS]
