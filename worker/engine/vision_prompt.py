"""Conversations with pictures: ids in which each token of a picture is a number of its own.

Those numbers lie beyond the vocabulary, and pictures of other bytes have others. So ids alone tell what a
model has read, in batches, after a preemption and in the prefix cache: the same words with another picture
are another prompt. Used on the preparation thread.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.engine.output import PromptError
from worker.engine.pictures import decoded, read_data_url
from worker.engine.prompt import PromptReader, ReadPrompt

_KNOWN = 4096
"""So many pictures keep their numbers; one that comes again after so many others gets new ones."""
_KNOWN_IDS = 1 << 20
"""So many ids they have together, at some 40 bytes each."""
_HALVES = (2**30, 2**31)
"""Where the numbers end: mlx-lm keeps ids in 32 bits, with a sign."""

_BEFORE, _AFTER = "begins here", "ends here"

Inputs = dict[str, Any]
"""What the model's encoder reads of one picture, in a prompt of nothing else: arrays of numpy."""


@dataclass(frozen=True)
class Place:
    """Where a picture stands among ids: what takes the place of its mark."""

    ids: tuple[int, ...]
    first: int
    """Its own tokens have the numbers from here on; the others of `ids` only frame them."""
    tokens: int


@dataclass(eq=False)
class Picture:
    """One in a prompt. What is read of it is there until it is encoded, and made again when it is needed."""

    key: bytes
    """Of its bytes."""
    place: Place
    make: Callable[[], Inputs]
    inputs: Inputs | None = None

    @property
    def last(self) -> int:
        return self.place.first + self.place.tokens - 1

    def take_inputs(self) -> Inputs:
        """For the encoder, once."""
        inputs, self.inputs = self.inputs, None
        return self.make() if inputs is None else inputs


class Places:
    """Which numbers the pictures have that were seen last.

    When one half of all numbers is used up, the pictures get new ones from the other half, and what is kept
    under the old ones is forgotten. A request that is in hand meanwhile has numbers of the half before:
    they come again only after as many others, when everything is forgotten once more.
    """

    def __init__(self, vocabulary: int, forget: Callable[[], object]) -> None:
        """`forget`: whatever knows a number of a picture has to let go of it."""
        self._vocabulary = vocabulary
        self._forget = forget
        self._next = vocabulary
        self._places: OrderedDict[bytes, Place] = OrderedDict()
        self._ids = 0

    def of(self, key: bytes) -> Place | None:
        """That of the picture with this key, where it is known."""
        place = self._places.get(key)
        if place is not None:
            self._places.move_to_end(key)
        return place

    def add(self, key: bytes, ids: Sequence[int], token: int) -> Place:
        """That of a new one: in `ids`, each `token` gets a number."""
        count = sum(each == token for each in ids)
        first = self._numbers(count)
        numbers = iter(range(first, first + count))
        place = Place(tuple(next(numbers) if each == token else each for each in ids), first, count)
        self._places[key] = place
        self._ids += len(ids)
        while len(self._places) > _KNOWN or self._ids > _KNOWN_IDS:
            self._ids -= len(self._places.popitem(last=False)[1].ids)
        return place

    def _numbers(self, count: int) -> int:
        """The first of so many in a row."""
        middle, end = _HALVES
        low = self._next <= middle
        if self._next + count > (middle if low else end):
            self._next = middle + 1 if low else self._vocabulary
            self._places.clear()
            self._ids = 0
            self._forget()
        self._next += count
        return self._next - count


class PictureReader(PromptReader):
    """Reads conversations with pictures, for a model and its processor."""

    def __init__(
        self,
        tokenizer: Any,
        vocabulary: int,
        processor: Processor,
        encoded: Callable[[bytes], bool],
        forget: Callable[[], object],
    ) -> None:
        """`encoded` tells of a key whether the encoder's output is there; it is but asked. `forget`: as
        `Places` has it."""
        super().__init__(tokenizer, vocabulary)
        self.picture_mark = processor.mark
        self._processor = processor
        self._encoded = encoded
        self._places = Places(vocabulary, forget)

    def conversation(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        native_tools: bool,
        options: Mapping[str, Any] | None = None,
        pictures: Sequence[str] = (),
    ) -> ReadPrompt:
        """As `chat`, with the pictures of the messages in their order. Raises `PromptError`."""
        text = self.rendered(messages, tools, native_tools, options)
        ids = self.of_rendered(text)
        marks = ids.count(self._processor.mark_id)
        if marks != len(pictures):
            raise PromptError(
                f"{len(pictures)} pictures came, and the conversation has {marks} places for pictures (its"
                f" text must not have the mark {self._processor.mark_text!r})",
                "template",
            )
        if ids[-1] == self._processor.mark_id:
            raise PromptError("a conversation cannot end with a picture", "template")
        found = [self._picture(read_data_url(url, number), number) for number, url in enumerate(pictures, 1)]
        return ReadPrompt(_filled(ids, self._processor.mark_id, found), tuple(found))

    def _render(
        self,
        turns: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> str:
        if self._processor.wants_parts:
            turns = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in turns]
        return super()._render(turns, tools, variables)

    def _picture(self, data: bytes, number: int) -> Picture:
        key = hashlib.sha256(data).digest()

        def make() -> Inputs:
            return self._processor.inputs(decoded(data, number))

        place = self._places.of(key)
        if place is not None:
            return Picture(key, place, make, None if self._encoded(key) else make())
        inputs = make()
        place = self._places.add(key, self._processor.expansion(inputs), self._processor.token_id)
        return Picture(key, place, make, inputs)


class Processor:
    """What a model's own processor makes of one picture, by mlx-vlm's public functions."""

    def __init__(self, processor: Any, tokenizer: Any, token_id: int) -> None:
        """`token_id` stands for each of a picture's tokens. Raises `ValueError` where no mark is."""
        self._processor = processor
        self._tokenizer = tokenizer
        self.token_id = token_id
        self.mark = self._mark_of_template()
        """What the template writes for a picture."""
        self.wants_parts = _BEFORE not in self._templated(_BEFORE)
        """Whether the template leaves out what is not a list of parts."""
        self._alone = tokenizer.encode(self.mark, add_special_tokens=False)
        self.mark_text = str(getattr(processor, "image_token", None) or tokenizer.decode([token_id]))
        self.mark_id = int(tokenizer.convert_tokens_to_ids(self.mark_text))
        if self._alone.count(self.mark_id) != 1:
            raise ValueError(
                f"the chat template marks a picture by {self.mark!r}, which has not the token"
                f" {self.mark_text!r} of its processor; copy the whole model again"
            )

    def inputs(self, image: Any) -> Inputs:
        """Raises `PromptError` for a picture that it does not take."""
        import numpy as np  # noqa: PLC0415 (a requirement of models)
        from mlx_vlm.utils import prepare_inputs  # noqa: PLC0415 (OpenBLAS came first)

        try:
            made = prepare_inputs(self._processor, images=[image], prompts=self.mark)
        except Exception as error:  # whatever the model's own program has against its shape
            words = f"the model takes no picture of {image.width} x {image.height}: {error}"
            raise PromptError(words, "template") from error
        return {name: np.array(value) for name, value in made.items() if value is not None}

    def expansion(self, inputs: Inputs) -> list[int]:
        """The ids that take the place of the mark's one token."""
        whole: list[int] = inputs["input_ids"][0].tolist()
        at = self._alone.index(self.mark_id)
        return whole[at : len(whole) - (len(self._alone) - at - 1)]

    def _mark_of_template(self) -> str:
        parts = [{"type": "text", "text": _BEFORE}, {"type": "image"}, {"type": "text", "text": _AFTER}]
        mark = self._templated(parts).partition(_BEFORE)[2].partition(_AFTER)[0].strip()
        if not mark:
            raise ValueError(
                "the model's chat template shows no pictures; copy chat_template.json or chat_template.jinja"
                " of the model again"
            )
        return mark

    def _templated(self, content: Any) -> str:
        turns = [{"role": "user", "content": content}]
        try:
            return str(self._tokenizer.apply_chat_template(turns, tokenize=False))
        except Exception:  # noqa: BLE001 (a template that takes only one of both forms)
            return ""


def _filled(ids: Sequence[int], mark: int, pictures: Sequence[Picture]) -> list[int]:
    places = iter(pictures)
    filled: list[int] = []
    for token in ids:
        filled.extend(next(places).place.ids if token == mark else (token,))
    return filled
