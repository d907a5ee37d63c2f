"""Prompts: conversations through the model's chat template, and text into token ids.

Used on the preparation thread, one call at a time: a long prompt must not hold up the event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from worker.engine.output import PromptError, Tokens
from worker.history import for_strict_templates, with_tools_told
from worker.parsers.json_calls import argument_object

_END = 32
"""Tokens at the end of a prompt in which the mark of reasoning is looked for."""
_NOT_FOR_CLIENTS = frozenset(
    {
        *("messages", "conversation", "conversations", "tools", "chat_template", "tokenize", "return_dict"),
        *("return_tensors", "padding", "truncation", "max_length", "tokenizer_kwargs"),
        *("return_assistant_tokens_mask", "sanitize_control_tokens"),
    }
)
"""Parameters of the renderer itself. A template of a client's own would be a program of its own."""


class ReadPrompt(NamedTuple):
    """The ids of a prompt, and the pictures that stand for some of them."""

    ids: list[int]
    pictures: tuple[Any, ...] = ()


class PromptReader:
    """A tokenizer with its chat template, and the number of ids that the model knows."""

    picture_mark: str | None = None
    """What stands in a text for a picture; None: the model cannot see."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary

    def text(self, prompt: str) -> list[int]:
        """The ids of a plain prompt. Raises `PromptError`."""
        return self.checked(self._encode(prompt, special=True), "prompt")

    def ids(self, prompt: Sequence[int]) -> list[int]:
        """A prompt that is given as ids. Raises `PromptError`."""
        return self.checked(list(prompt), "prompt")

    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        native_tools: bool,
        options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The ids of a conversation, ready for the assistant's turn. Raises `PromptError`.

        `options` are further variables for the template.
        """
        return self.of_rendered(self.rendered(messages, tools, native_tools, options))

    def conversation(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        native_tools: bool,
        options: Mapping[str, Any] | None = None,
        pictures: Sequence[str] = (),
    ) -> ReadPrompt:
        """As `chat`, with the pictures of its parts in their order, as data URLs. Raises `PromptError`."""
        if pictures:
            raise PromptError("this model takes text only, no pictures", "template")
        return ReadPrompt(self.chat(messages, tools, native_tools, options))

    def of_rendered(self, text: str) -> list[int]:
        """The ids of a conversation that went through the template. Raises `PromptError`."""
        return self.checked(self._encode(text, special=False), "prompt")

    def tokens(self, text: str, ids: list[int], *, pieces: bool) -> Tokens:
        """What is told of a prompt."""
        return Tokens(text, ids, [self.text_of([each]) for each in ids] if pieces else [])

    def plain(self, text: str, *, special: bool) -> list[int]:
        """The ids of any text, an empty one too. Raises `PromptError`."""
        return self._encode(text, special=special)

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of some tokens, special ones too. Raises `PromptError` for unknown ones."""
        self.check(ids, "the request", param="tokens")
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def rendered(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        native_tools: bool,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a conversation. Raises `PromptError`."""
        if not getattr(self._tokenizer, "has_chat_template", False):
            raise PromptError(
                "this model has no chat template, so that it cannot hold a conversation; ask a model that has"
                " one, or put a chat_template.jinja into its folder and start the worker again",
                "unsupported",
            )
        variables = template_variables(options or {})
        if not self._takes_tools:  # whatever it left out, nobody would be told of
            messages, tools = with_tools_told(messages, tools or ()), None
            native_tools = False
        turns = [template_message(message, native_tools, self.picture_mark) for message in messages]
        try:
            return self._render(turns, tools, variables)
        except Exception as error:  # noqa: BLE001 (the template is a program that came with the model)
            return self._render_strictly(turns, tools, variables, error)

    @property
    def _takes_tools(self) -> bool:
        """Whether the template has a place for them, as far as it can be read; some are programs."""
        template = getattr(self._tokenizer, "chat_template", None)
        return template is None or "tools" in str(template)

    def ends_in_reasoning(self, ids: Sequence[int], mark: str | None) -> bool:
        """Whether a prompt's last word is the mark that begins reasoning."""
        if mark is None:
            return False
        last = [each for each in ids[-_END:] if each < self._vocabulary]
        end = str(self._tokenizer.decode(last, skip_special_tokens=False))
        return end.rstrip().endswith(mark)

    def _render(
        self,
        turns: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> str:
        given = {"add_generation_prompt": True, **variables}
        return str(self._tokenizer.apply_chat_template(turns, tools=tools or None, tokenize=False, **given))

    def _render_strictly(
        self,
        turns: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: Mapping[str, Any],
        refusal: Exception,
    ) -> str:
        """Once more, in a form that strict templates take. The first refusal's words are what counts."""
        strict = for_strict_templates(turns)
        if strict != turns:
            with contextlib.suppress(Exception):
                return self._render(strict, tools, variables)
        raise PromptError(
            f"the model's chat template does not take this conversation: {refusal}", "template"
        ) from refusal

    def checked(self, ids: list[int], what: str) -> list[int]:
        """`ids`, when there are some and the model knows them all. Raises `PromptError`."""
        if not ids:
            raise PromptError(f"the {what} is empty", "tokens")
        self.check(ids, f"the {what}")
        return ids

    def check(self, ids: Sequence[int], what: str, *, param: str | None = None) -> None:
        """Raises `PromptError` unless the model knows all of them."""
        if ids and not (
            all(type(each) is int for each in ids) and 0 <= min(ids) <= max(ids) < self._vocabulary
        ):
            raise PromptError(
                f"{what} has token ids that the model does not know (beyond 0 to {self._vocabulary - 1})",
                "tokens",
                param=param,
            )

    def _encode(self, text: str, *, special: bool) -> list[int]:
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=special))
        except (UnicodeError, TypeError) as error:
            raise PromptError(f"the prompt is not valid text: {error}", "tokens") from error


def template_variables(options: Mapping[str, Any]) -> dict[str, Any]:
    """A client's variables for the template. Raises `PromptError` for those that are not its to set."""
    variables = {name: value for name, value in options.items() if value is not None}
    if taken := sorted(_NOT_FOR_CLIENTS.intersection(variables)):
        words = f"chat_template_kwargs cannot set {', '.join(taken)}"
        raise PromptError(words, "settings", param="chat_template_kwargs")
    if variables.get("continue_final_message"):
        if variables.get("add_generation_prompt"):
            words = "continue_final_message and add_generation_prompt cannot both be true"
            raise PromptError(words, "settings", param="continue_final_message")
        variables["add_generation_prompt"] = False
    return variables


def template_message(
    message: dict[str, Any], native_tools: bool, picture_mark: str | None = None
) -> dict[str, Any]:
    """The message as a template reads it: its parts joined to one text, the arguments of calls as
    objects; without `native_tools`, calls and results as text. Raises `PromptError` for parts that
    are no text, nor pictures where there is a mark for them."""
    content = _content_text(message.get("content"), picture_mark)
    calls = message.get("tool_calls") or ()
    if native_tools:
        return {**message, "content": content} | (
            {"tool_calls": [_parsed(c) for c in calls]} if calls else {}
        )
    flat = {name: value for name, value in message.items() if name != "tool_calls"}
    if flat.get("role") == "tool":
        return {"role": "user", "content": f"[result of {flat.get('name') or 'the call'}]\n{content}"}
    called = [f"[call {call['function']['name']}: {call['function']['arguments']}]" for call in calls]
    return {**flat, "content": "\n".join(text for text in (content, *called) if text)}


def _parsed(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    if not isinstance(arguments, dict):
        arguments = argument_object(arguments or "")
    return {**call, "function": {**function, "arguments": arguments}}


def _content_text(content: Any, picture_mark: str | None) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(_part_text(part, picture_mark) for part in content)


def _part_text(part: dict[str, Any], picture_mark: str | None) -> str:
    kind = part.get("type")
    if kind == "text":
        return str(part.get("text", ""))
    if picture_mark is None:
        raise PromptError(f"this model takes text only, no part of type {kind!r}", "template")
    if kind not in ("image", "image_url"):
        raise PromptError(f"this model takes text and pictures, no part of type {kind!r}", "template")
    return picture_mark
