"""The fields of Anthropic's requests."""

from __future__ import annotations

from gateway.dialects.openai_rows import CONTENT, MAX_COMPLETION_TOKENS, MODEL, MOST, SAMPLING, STREAM, WORD
from gateway.dialects.table import ARRAY, FLAG, INTEGER, OBJECT, STRING, Row, ignored, items, keys

_ROLES = {"enum": ["user", "assistant", "system"]}
_TOOL = keys("name", name={**WORD, "minLength": 1}, input_schema={"type": "object"})
BUDGET = Row("budget_tokens", INTEGER, "`thinking_budget` of the chat template", low=0, high=MOST)
_CONVERSATION = (
    MODEL,
    Row(
        "messages",
        ARRAY,
        "at least one; blocks of unknown kinds are left out",
        required=True,
        schema=items(keys("role", "content", role=_ROLES, content=CONTENT), at_least=1),
    ),
    Row(
        "system",
        ("string", "array"),
        "text",
        schema=items(keys("type", "text", type={"const": "text"}, text=WORD)),
    ),
    Row("tools", ARRAY, "the client's own; those that the vendor runs are left out", schema=items(_TOOL)),
    Row(
        "tool_choice",
        OBJECT,
        "auto, any, tool, none",
        rows=(Row("type", STRING), Row("name", STRING), Row("disable_parallel_tool_use", FLAG)),
    ),
    Row("thinking", OBJECT, "disabled switches reasoning off", rows=(Row("type", STRING), BUDGET)),
)
_SERVICE = (
    *("metadata", "service_tier", "context_management", "container", "mcp_servers", "speed"),
    *("inference_geo", "diagnostics", "betas", "cache_control"),
)

MESSAGES = (
    *_CONVERSATION,
    Row("max_tokens", INTEGER, low=1, high=MOST, required=True),
    MAX_COMPLETION_TOKENS,
    STREAM,
    Row("stop_sequences", ("string", "array"), "empty ones are left out", schema=items(WORD)),
    *SAMPLING,
    Row("output_config", OBJECT, rows=(Row("format", OBJECT, "json_schema"), *ignored("effort"))),
    Row("output_format", OBJECT, "an older name of output_config.format"),
    *ignored(*_SERVICE),
)
COUNT = (
    *_CONVERSATION,
    *ignored("max_tokens", "stream", "stop_sequences", "temperature", "output_config", *_SERVICE),
)
