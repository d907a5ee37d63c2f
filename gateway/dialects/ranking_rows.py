"""The fields of requests to rank and to score texts."""

from __future__ import annotations

from gateway.dialects.openai_rows import MODEL, MOST, PRIORITY, TRUNCATE, WORD
from gateway.dialects.table import ARRAY, FLAG, INTEGER, STRING, Row, ignored, items, keys

TOP_N = Row("top_n", INTEGER, "only the best so many", low=1, high=MOST)
MAX_TOKENS_PER_DOC = Row("max_tokens_per_doc", INTEGER, "Cohere: longer documents are cut", low=1, high=MOST)
_SHARED = (TRUNCATE, PRIORITY, *ignored("user", "truncation", "activation", "use_activation"))
_TEXTS = items(WORD, at_least=1)

RERANK = (
    MODEL,
    Row("query", STRING, required=True, schema={"minLength": 1}),
    Row(
        "documents",
        ARRAY,
        "up to 2,048 texts, or objects with a text",
        required=True,
        schema=items(WORD, keys("text", text=WORD), at_least=1),
    ),
    TOP_N,
    Row("return_documents", FLAG, "true if absent, but at /v2/rerank"),
    MAX_TOKENS_PER_DOC,
    *_SHARED,
)
SCORE = (
    MODEL,
    Row("text_1", ("string", "array"), "one text, or as many as text_2 has", required=True, schema=_TEXTS),
    Row("text_2", ("string", "array"), "up to 2,048 texts", required=True, schema=_TEXTS),
    Row("queries", ("string", "array"), "another name of text_1"),
    Row("documents", ("string", "array"), "another name of text_2"),
    *_SHARED,
)
