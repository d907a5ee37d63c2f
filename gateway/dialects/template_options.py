"""What a request says to the model's chat template: reasoning on or off, and variables of its own."""

from __future__ import annotations

from typing import Any

from gateway.dialects.fields import Fields, wrong_type, wrong_value

_FLAGS = ("add_generation_prompt", "continue_final_message")
_THINKING = ("think", "enable_thinking")
_TYPES = {"enabled": True, "adaptive": True, "disabled": False}
_EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")


def effort_options(effort: str | None) -> dict[str, Any]:
    """Words that nobody knows say nothing: templates may raise for them."""
    if effort == "none":
        return {"enable_thinking": False}
    return {"reasoning_effort": effort} if effort in _EFFORTS else {}


def parse_template_options(fields: Fields) -> dict[str, Any]:
    """All spellings that clients have, `chat_template_kwargs` last. Raises `ClusterError`."""
    options = effort_options(fields.text("reasoning_effort"))
    thinking = fields.raw("thinking")
    if isinstance(thinking, dict) and str(thinking.get("type")) in _TYPES:
        options["enable_thinking"] = _TYPES[thinking["type"]]
    for name in (*_THINKING, *_FLAGS):
        value = fields.raw(name)
        if isinstance(value, bool):
            options["enable_thinking" if name in _THINKING else name] = value
        elif value is not None and name != "think":
            raise wrong_type(name, "a boolean", value)
    if fields.object("chat_template_kwargs") is not None:
        options |= fields.raw("chat_template_kwargs")
    if options.get("continue_final_message") and options.get("add_generation_prompt"):
        raise wrong_value("continue_final_message", "cannot go with add_generation_prompt; set one of them")
    return options
