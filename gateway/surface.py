"""Every path that clients may ask, with what it takes and gives.

`/openapi.json` and the tables of docs/api.md are made of it. The paths are those that `gateway.app`
serves, apart from the operator's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gateway.dialects import anthropic_rows, ollama_rows, openai_rows, ranking_rows, token_rows
from gateway.dialects.table import Row, items, record

JSON = "application/json"
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
TEXT = "text/plain"

_STRING: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_NUMBER: dict[str, Any] = {"type": "number"}
_LIST: dict[str, Any] = {"type": "array"}
_OBJECT: dict[str, Any] = {"type": "object"}
_NULLABLE: dict[str, Any] = {"type": ["object", "null"]}


class Route(NamedTuple):
    """One path and method. `rows` None: it takes no body."""

    method: str
    path: str
    title: str
    rows: tuple[Row, ...] | None = None
    answer: dict[str, Any] = _OBJECT
    """The JSON schema of its body."""
    streamed: str = ""
    """The content type of a stream, where there is one."""
    content: str = JSON
    statuses: tuple[int, ...] = (200,)


def _word(word: str) -> dict[str, Any]:
    return {"const": word}


def _list(of: dict[str, Any], at_least: int = 0) -> dict[str, Any]:
    return _LIST | items(of, at_least=at_least)


_USAGE = record(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)
_COMMON = {"id": _STRING, "created": _COUNT, "model": _STRING, "usage": _USAGE}
_CHAT_CHOICE = record(
    index=_COUNT,
    message=record(role=_word("assistant"), content={"type": ["string", "null"]}, refusal={"type": "null"}),
    logprobs=_NULLABLE,
    finish_reason={"enum": ["stop", "length", "tool_calls"]},
)
_CHOICE = record(index=_COUNT, text=_STRING, logprobs=_NULLABLE, finish_reason={"enum": ["stop", "length"]})
_CHAT = record(**_COMMON, object=_word("chat.completion"), choices=_list(_CHAT_CHOICE, 1))
_COMPLETION = record(**_COMMON, object=_word("text_completion"), choices=_list(_CHOICE, 1))
_RESPONSE = record(
    id=_STRING,
    object=_word("response"),
    created_at=_COUNT,
    status={"enum": ["completed", "incomplete"]},
    model=_STRING,
    output=_list(record(id=_STRING, type=_STRING), 1),
    usage=record(input_tokens=_COUNT, output_tokens=_COUNT, total_tokens=_COUNT),
)
_MESSAGE = record(
    id=_STRING,
    type=_word("message"),
    role=_word("assistant"),
    model=_STRING,
    content=_list(record(type=_STRING), 1),
    stop_reason={"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
    stop_sequence={"type": ["string", "null"]},
    usage=record(input_tokens=_COUNT, output_tokens=_COUNT),
)
_COUNTS = record(prompt_tokens=_COUNT, total_tokens=_COUNT)
_VECTOR = record(object=_word("embedding"), index=_COUNT, embedding={"type": ["array", "string"]})
_EMBEDDINGS = record(object=_word("list"), data=_list(_VECTOR, 1), model=_STRING, usage=_COUNTS)
_RANK = record(index=_COUNT, relevance_score=_NUMBER)
_RANKS = record(id=_STRING, model=_STRING, results=_list(_RANK, 1), usage=_COUNTS)
_PAIR = record(index=_COUNT, object=_word("score"), score=_NUMBER)
_SCORES = record(id=_STRING, object=_word("list"), data=_list(_PAIR, 1), model=_STRING, usage=_COUNTS)
_TOKENS = record(tokens=_LIST)
_TEXT_OF = record(prompt=_STRING, content=_STRING)
_OLLAMA = {"model": _STRING, "created_at": _STRING, "done": {"type": "boolean"}}
_EMBEDDED = record(model=_STRING, embeddings=_list(_list(_NUMBER, 1), 1), prompt_eval_count=_COUNT)
_MODEL = record(id=_STRING, object=_STRING)
_MODELS = record(object=_word("list"), data=_list(_MODEL))
_TAGS = record(models=_list(record(name=_STRING, model=_STRING)))
_STATUS = record(status=_STRING)

ROUTES = (
    Route("POST", "/v1/chat/completions", "Chat completions (OpenAI)", openai_rows.CHAT, _CHAT, EVENTS),
    Route("POST", "/v1/completions", "Completions (OpenAI)", openai_rows.COMPLETIONS, _COMPLETION, EVENTS),
    Route("POST", "/v1/responses", "Responses (OpenAI)", openai_rows.RESPONSES, _RESPONSE, EVENTS),
    Route("GET", "/v1/responses/{response}", "A response that is kept", None, _RESPONSE),
    Route(
        "DELETE",
        "/v1/responses/{response}",
        "Forget a response",
        None,
        record(id=_STRING, deleted=_word(True)),  # type: ignore[arg-type]
    ),
    Route("POST", "/v1/messages", "Messages (Anthropic)", anthropic_rows.MESSAGES, _MESSAGE, EVENTS),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        "Tokens of messages (Anthropic)",
        anthropic_rows.COUNT,
        record(input_tokens=_COUNT),
    ),
    Route("POST", "/v1/embeddings", "Embeddings (OpenAI)", openai_rows.EMBEDDINGS, _EMBEDDINGS),
    Route("POST", "/v1/rerank", "Documents by relevance (Jina, Cohere)", ranking_rows.RERANK, _RANKS),
    Route("POST", "/v2/rerank", "The same; documents are not repeated", ranking_rows.RERANK, _RANKS),
    Route("POST", "/v1/score", "Scores of pairs of texts (vLLM)", ranking_rows.SCORE, _SCORES),
    Route("GET", "/v1/models", "Models, for the clients of both", None, _MODELS),
    Route("GET", "/v1/models/{model}", "One model", None, _MODEL),
    Route("POST", "/tokenize", "Token ids (vLLM, llama.cpp)", token_rows.TOKENIZE, _TOKENS),
    Route("POST", "/detokenize", "The text of token ids", token_rows.DETOKENIZE, _TEXT_OF),
    Route("POST", "/apply-template", "A rendered conversation", token_rows.TEMPLATE_OF, _TEXT_OF),
    Route("POST", "/api/chat", "Chat (Ollama)", ollama_rows.CHAT, record(**_OLLAMA, message=_OBJECT), LINES),
    Route(
        "POST",
        "/api/generate",
        "Generate (Ollama)",
        ollama_rows.GENERATE,
        record(**_OLLAMA, response=_STRING),
        LINES,
    ),
    Route("POST", "/api/embed", "Embeddings (Ollama)", ollama_rows.EMBED, _EMBEDDED),
    Route(
        "POST",
        "/api/embeddings",
        "Embedding of one text (Ollama, older)",
        ollama_rows.EMBEDDINGS,
        record(embedding=_list(_NUMBER, 1)),
    ),
    Route("POST", "/api/show", "One model (Ollama)", ollama_rows.SHOW, record(model_info=_OBJECT)),
    Route("GET", "/api/tags", "Models (Ollama)", None, _TAGS),
    Route("GET", "/api/ps", "Loaded models (Ollama)", None, _TAGS),
    Route("GET", "/api/version", "The version of Ollama's routes", None, record(version=_STRING)),
    Route("GET", "/api/v0/models", "Models (LM Studio)", None, _MODELS),
    Route("GET", "/api/v0/models/{model}", "One model (LM Studio)", None, _MODEL),
    Route(
        "POST", "/api/v0/chat/completions", "Chat completions (LM Studio)", openai_rows.CHAT, _CHAT, EVENTS
    ),
    Route(
        "POST", "/api/v0/completions", "Completions (LM Studio)", openai_rows.COMPLETIONS, _COMPLETION, EVENTS
    ),
    Route("POST", "/api/v0/embeddings", "Embeddings (LM Studio)", openai_rows.EMBEDDINGS, _EMBEDDINGS),
    Route("GET", "/health", "The process runs", None, _STATUS),
    Route("GET", "/health/live", "The process runs", None, _STATUS),
    Route("GET", "/health/ready", "Every model has a ready worker", None, _STATUS, statuses=(200, 503)),
    Route("GET", "/ping", "The process runs", None, _STATUS),
    Route("GET", "/version", "The version", None, record(version=_STRING)),
    Route("GET", "/metrics", "Figures for Prometheus", None, _STRING, content=TEXT),
    Route("GET", "/openapi.json", "This description", None, record(openapi=_STRING, paths=_OBJECT)),
)
