"""The fields of Ollama's requests."""

from __future__ import annotations

from gateway.dialects.openai_rows import (
    DIMENSIONS,
    MAX_COMPLETION_TOKENS,
    MAX_TOKENS,
    MODEL,
    MOST,
    SAMPLING,
    SEED,
    STOP,
    TOOLS,
    WORD,
)
from gateway.dialects.table import ARRAY, FLAG, INTEGER, OBJECT, STRING, Row, ignored, items, keys, refused

NUM_PREDICT = Row("num_predict", INTEGER, "below 1: as many as fit", low=-2, high=MOST)
OPTIONS = (
    NUM_PREDICT,
    MAX_TOKENS,
    MAX_COMPLETION_TOKENS,
    *SAMPLING,
    STOP,
    SEED,
    *ignored("num_ctx", "num_batch", "num_gpu", "num_keep", "num_thread", "repeat_last_n", "typical_p"),
    *ignored("tfs_z", "mirostat", "mirostat_eta", "mirostat_tau", "numa", "use_mmap", "penalize_newline"),
)
NAME = Row("name", STRING, "an older name of model")
_SHARED = (
    MODEL,
    NAME,
    Row("stream", FLAG, "true if absent"),
    Row("think", note="false, null or 0 switch reasoning off, all else on"),
    Row("format", ("string", "object"), '"json", or a schema'),
    Row("options", OBJECT, rows=OPTIONS),
    *ignored("keep_alive", "truncate", "shift", "logprobs", "top_logprobs"),
)

_ROLES = {"enum": ["system", "user", "assistant", "tool"]}
_MESSAGES = Row(
    "messages",
    ARRAY,
    "at least one",
    required=True,
    schema=items(keys("role", role=_ROLES, content=WORD), at_least=1),
)

CHAT = (*_SHARED, _MESSAGES, *TOOLS)
GENERATE = (
    *_SHARED,
    Row("prompt", STRING),
    Row("system", STRING),
    Row("raw", FLAG, "without the chat template"),
    refused("suffix", STRING, "write your model's own marks into a raw prompt"),
    Row("images", ARRAY, "where the model can see"),
    *ignored("template", "context"),
)
EMBED = (
    MODEL,
    NAME,
    Row(
        "input",
        ("string", "array"),
        "a text, or up to 2,048 of them",
        required=True,
        schema=items({**WORD, "minLength": 1}, at_least=1),
    ),
    Row("truncate", FLAG, "true if absent: longer texts are cut"),
    DIMENSIONS,
    *ignored("options", "keep_alive"),
)
EMBEDDINGS = (
    MODEL,
    NAME,
    Row("prompt", STRING, "longer ones are cut", required=True, schema={"minLength": 1}),
    *ignored("options", "keep_alive"),
)
SHOW = (MODEL, NAME, *ignored("verbose"))
