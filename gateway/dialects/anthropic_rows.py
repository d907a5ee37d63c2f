"""The fields of Anthropic's requests."""

from __future__ import annotations

from gateway.dialects.openai_rows import MAX_COMPLETION_TOKENS, MODEL, MOST, SAMPLING, STREAM
from gateway.dialects.table import ARRAY, FLAG, INTEGER, OBJECT, STRING, Row, ignored

_CONVERSATION = (
    MODEL,
    Row("messages", ARRAY, "at least one; blocks of unknown kinds are left out", required=True),
    Row("system", ("string", "array"), "text"),
    Row("tools", ARRAY, "the client's own; those that the vendor runs are left out"),
    Row(
        "tool_choice",
        OBJECT,
        "auto, any, tool, none",
        rows=(Row("type", STRING), Row("name", STRING), Row("disable_parallel_tool_use", FLAG)),
    ),
    Row("thinking", OBJECT, "disabled switches reasoning off", rows=(Row("type", STRING),)),
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
    Row("stop_sequences", ("string", "array"), "empty ones are left out"),
    *SAMPLING,
    Row("output_config", OBJECT, rows=(Row("format", OBJECT, "json_schema"), *ignored("effort"))),
    Row("output_format", OBJECT, "an older name of output_config.format"),
    *ignored(*_SERVICE),
)
COUNT = (
    *_CONVERSATION,
    *ignored("max_tokens", "stream", "stop_sequences", "temperature", "output_config", *_SERVICE),
)
