"""The fields of the requests about tokens, vLLM's and llama.cpp's."""

from __future__ import annotations

from gateway.dialects.openai_rows import MESSAGES, MODEL, TEMPLATE, TOKEN_ID, TOOLS
from gateway.dialects.table import ARRAY, FLAG, STRING, Row, items

_CONVERSATION = (*TOOLS, *TEMPLATE)

TOKENIZE = (
    MODEL,
    Row("prompt", STRING, "or content, or messages"),
    Row("content", STRING, "llama.cpp's name"),
    Row("messages", ARRAY, "tokens of the rendered conversation"),
    Row("add_special_tokens", FLAG, "of a prompt; true if absent"),
    Row("return_token_strs", FLAG),
    Row("add_special", FLAG, "of content; false if absent"),
    Row("with_pieces", FLAG, "of content"),
    *_CONVERSATION,
)
DETOKENIZE = (MODEL, Row("tokens", ARRAY, "token ids", required=True, schema=items(TOKEN_ID)))
TEMPLATE_OF = (MODEL, MESSAGES, *_CONVERSATION)
