"""Prompts: conversations through the model's chat template, and text into token ids.

Used on the preparation thread, one call at a time: a long prompt must not hold up the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worker.engine.output import PromptError


class PromptReader:
    """A tokenizer with its chat template, and the number of ids that the model knows."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary

    def text(self, prompt: str) -> list[int]:
        """The ids of a plain prompt. Raises `PromptError`."""
        return self.checked(self._encode(prompt, special=True), "prompt")

    def chat(
        self, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]] | None, native_tools: bool
    ) -> list[int]:
        """The ids of a conversation, ready for the assistant's turn. Raises `PromptError`."""
        if not getattr(self._tokenizer, "has_chat_template", False):
            raise PromptError(
                "this model has no chat template, so that it cannot hold a conversation; ask a model that has"
                " one, or put a chat_template.jinja into its folder and start the worker again",
                "unsupported",
            )
        turns = [flat_message(message, native_tools) for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(
                turns, tools=tools or None, add_generation_prompt=True, tokenize=False
            )
        except Exception as error:  # the template is a program that came with the model
            raise PromptError(
                f"the model's chat template does not take this conversation: {error}", "template"
            ) from error
        return self.checked(self._encode(text, special=False), "prompt")

    def checked(self, ids: list[int], what: str) -> list[int]:
        """`ids`, when there are some and the model knows them all. Raises `PromptError`."""
        if not ids:
            raise PromptError(f"the {what} is empty", "tokens")
        if min(ids) < 0 or max(ids) >= self._vocabulary:
            raise PromptError(
                f"the {what} has token ids that the model does not know (beyond {self._vocabulary - 1})",
                "tokens",
            )
        return ids

    def _encode(self, text: str, *, special: bool) -> list[int]:
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=special))
        except (UnicodeError, TypeError) as error:
            raise PromptError(f"the prompt is not valid text: {error}", "tokens") from error


def flat_message(message: dict[str, Any], native_tools: bool) -> dict[str, Any]:
    """The message with its parts joined to one text, and tool messages too unless `native_tools`.

    Raises `PromptError` for parts that are no text.
    """
    flat = {**message, "content": _content_text(message.get("content"))}
    if native_tools:
        return flat
    calls = flat.pop("tool_calls", None) or ()
    for call in calls:
        function = call.get("function", call)
        flat["content"] += f"\n[call {function.get('name')}: {function.get('arguments')}]"
    if flat.get("role") == "tool":
        return {"role": "user", "content": f"[result of {flat.get('name') or 'the call'}]\n{flat['content']}"}
    flat["content"] = flat["content"].lstrip("\n") if calls else flat["content"]
    return flat


def _content_text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    for part in content:
        if part.get("type") != "text":
            raise PromptError(f"this model takes text only, no part of type {part.get('type')!r}", "template")
    return "".join(part.get("text", "") for part in content)
