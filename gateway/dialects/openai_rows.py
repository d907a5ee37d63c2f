"""The fields of OpenAI's requests, and those of vLLM and llama.cpp beside them."""

from __future__ import annotations

from typing import Any

from gateway.dialects.table import (
    ARRAY,
    FLAG,
    INTEGER,
    NUMBER,
    OBJECT,
    STRING,
    Row,
    ignored,
    items,
    keys,
    refused,
)

MOST = 2**63 - 1
WORD: dict[str, Any] = {"type": "string"}
TOKEN_ID: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
TOKEN_IDS = {"type": "array", **items(TOKEN_ID, at_least=1)}
CONTENT: dict[str, Any] = {"anyOf": [WORD, {"type": "array", **items(keys("type", type=WORD))}]}
_NAMED = keys("name", name={"type": "string", "minLength": 1}, parameters={"type": "object"})
_TOOL = keys("type", "function", type=WORD, function=_NAMED)
_ROLES = {"enum": ["system", "developer", "user", "assistant", "tool", "function"]}
MAX_TOKENS = Row("max_tokens", INTEGER, "as many as fit, if absent", low=1, high=MOST)
MAX_COMPLETION_TOKENS = Row("max_completion_tokens", INTEGER, "wins over max_tokens", low=1, high=MOST)
NUMBERS = (
    Row("temperature", NUMBER, "0 takes the likeliest token", low=0, high=2, default=1.0),
    Row("top_p", NUMBER, low=0, high=1, default=1.0),
    Row("min_p", NUMBER, low=0, high=1, default=0.0),
    Row("presence_penalty", NUMBER, low=-2, high=2, default=0.0),
    Row("frequency_penalty", NUMBER, low=-2, high=2, default=0.0),
    Row("repetition_penalty", NUMBER, low=0, above=True, high=10, default=1.0),
    Row("repeat_penalty", NUMBER, "llama.cpp's name", low=0, above=True, high=10, default=1.0),
    Row("xtc_probability", NUMBER, low=0, high=1, default=0.0),
    Row("xtc_threshold", NUMBER, low=0, high=0.5, default=0.1),
)
TOP_K = Row("top_k", INTEGER, "0 and -1 switch it off", low=-1, high=MOST)
MIN_TOKENS = Row("min_tokens", INTEGER, "at most max_tokens", low=0, high=MOST)
REPETITION_CONTEXT = Row("repetition_context_size", INTEGER, "0: all tokens", low=0, high=MOST)
STOP = Row("stop", ("string", "array"), "up to 1,024 strings; empty ones are left out", schema=items(WORD))
SAMPLING = (
    *NUMBERS,
    TOP_K,
    MIN_TOKENS,
    REPETITION_CONTEXT,
    Row(
        "logit_bias",
        OBJECT,
        "of token ids, -100 to 100",
        schema={
            "propertyNames": {"pattern": "^[0-9]{1,6}$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        },
    ),
    Row("stop_token_ids", ARRAY, schema=items(TOKEN_ID)),
    Row("ignore_eos", FLAG),
)
SEED = Row("seed", INTEGER, "the sign of a negative one is dropped", low=-(2**63), high=MOST)
N = Row("n", INTEGER, low=1, high=128)
TOP_LOGPROBS = Row("top_logprobs", INTEGER, "only with logprobs", low=0, high=20)
LOGPROBS = Row("logprobs", INTEGER, "alternatives of each token", low=0, high=20)
BEST_OF = Row("best_of", INTEGER, "only where it equals n", low=1, high=128)
MAX_OUTPUT_TOKENS = Row("max_output_tokens", INTEGER, "as many as fit, if absent", low=1, high=MOST)

MODEL = Row("model", STRING, "may be left out where one model is served")
STREAM = Row("stream", FLAG)
STREAM_OPTIONS = Row(
    "stream_options",
    OBJECT,
    "only with stream",
    rows=(
        Row("include_usage", FLAG, "one more chunk at the end"),
        Row("continuous_usage_stats", FLAG, "beside include_usage: counts on every chunk (vLLM)"),
        *ignored("include_obfuscation"),
    ),
)
FORMATS = (
    Row("response_format", OBJECT, "text, json_object, json_schema", rows=(Row("type", STRING),)),
    Row("structured_outputs", OBJECT, "vLLM: one of json, regex, choice, grammar, json_object"),
    Row("guided_json", ("string", "object"), "vLLM"),
    Row("guided_regex", STRING, "vLLM"),
    Row("guided_choice", ARRAY, "vLLM", schema=items({**WORD, "minLength": 1}, at_least=1)),
    Row("guided_grammar", STRING, "vLLM"),
    Row("json_schema", ("string", "object"), "llama.cpp"),
    Row("grammar", STRING, "llama.cpp"),
)
TOOLS = (
    Row("tools", ARRAY, "functions, 128 at most; other kinds are left out; [] is none", schema=items(_TOOL)),
    Row("tool_choice", ("string", "object"), "auto, none, required, a function, allowed_tools"),
    Row("parallel_tool_calls", FLAG, "false: one call at most"),
)
TEMPLATE = (
    Row("reasoning_effort", STRING, "none switches reasoning off; else for the chat template"),
    Row("thinking", note="{type: enabled, adaptive, disabled}; other forms are passed over"),
    Row("think", note="true or false; other forms are passed over"),
    Row("enable_thinking", FLAG),
    Row("add_generation_prompt", FLAG),
    Row("continue_final_message", FLAG, "not with add_generation_prompt"),
    Row("chat_template_kwargs", OBJECT, "further variables of the chat template; wins"),
)
MESSAGES = Row(
    "messages",
    ARRAY,
    "at least one",
    required=True,
    schema=items(keys("role", "content", role=_ROLES, content=CONTENT), at_least=1),
)
PRIORITY = Row("priority", INTEGER, "vLLM: 1 waits as normal, above as batch", low=-MOST, high=MOST)
TURN = (Row("service_tier", STRING, "flex waits in the class batch; answers say `default`"), PRIORITY)
CACHE_KEY = Row("prompt_cache_key", STRING, "requests of one key go to the same workers")
_SERVICE = (
    *("user", "metadata", "store", "safety_identifier"),
    *("prompt_cache_retention", "prompt_cache_options", "moderation"),
)
_LOCAL = (
    *("cache_prompt", "request_id", "return_token_ids", "prompt_logprobs", "keep_alive", "ttl"),
    *("bad_words", "skip_special_tokens", "include_stop_str_in_output", "spaces_between_special_tokens"),
)

DIMENSIONS = Row("dimensions", INTEGER, "of models that allow it: the first so many", low=1, high=MOST)
TRUNCATE = Row(
    "truncate_prompt_tokens", INTEGER, "vLLM: longer texts are cut; -1: to the model's own", low=-1, high=MOST
)

CHAT = (
    MODEL,
    MESSAGES,
    STREAM,
    STREAM_OPTIONS,
    MAX_TOKENS,
    MAX_COMPLETION_TOKENS,
    *SAMPLING,
    STOP,
    SEED,
    N,
    *TURN,
    CACHE_KEY,
    Row("logprobs", FLAG),
    TOP_LOGPROBS,
    *FORMATS,
    *TOOLS,
    *TEMPLATE,
    Row("modalities", ARRAY, 'only ["text"]'),
    refused("audio", (), "there is none"),
    refused("functions", ARRAY, "use tools"),
    refused("function_call", ("string", "object"), "use tool_choice; none and auto pass"),
    *ignored(*_SERVICE, "verbosity", "prediction", "web_search_options", "documents", *_LOCAL),
)
COMPLETIONS = (
    MODEL,
    Row(
        "prompt",
        ("string", "array"),
        "texts, token ids, or lists of these",
        required=True,
        schema=items(WORD, TOKEN_ID, TOKEN_IDS, at_least=1),
    ),
    STREAM,
    STREAM_OPTIONS,
    Row("max_tokens", INTEGER, "16 if absent; 0 only with echo: the prompt is scored", low=0, high=MOST),
    Row("max_completion_tokens", INTEGER, "wins over max_tokens", low=0, high=MOST),
    *SAMPLING,
    STOP,
    SEED,
    N,
    *TURN,
    CACHE_KEY,
    LOGPROBS,
    BEST_OF,
    Row("echo", FLAG, "the prompt before the answer, with its log-probabilities where asked for"),
    *FORMATS,
    refused("suffix", STRING, "write your model's own marks into the prompt"),
    *ignored(*_SERVICE, *_LOCAL),
)
RESPONSES = (
    MODEL,
    Row(
        "input",
        ("string", "array"),
        "items of unknown kinds are left out; none at all is a probe",
        schema=items(keys("role", "content", role=_ROLES, content=CONTENT), {"type": "object"}),
    ),
    Row("instructions", STRING),
    Row("previous_response_id", STRING, "of a response that this gateway still keeps"),
    STREAM,
    Row("store", FLAG, "true if absent"),
    MAX_OUTPUT_TOKENS,
    MAX_TOKENS,
    MAX_COMPLETION_TOKENS,
    *SAMPLING,
    STOP,
    *TURN,
    CACHE_KEY,
    TOP_LOGPROBS,
    Row("include", ARRAY, "message.output_text.logprobs; others are passed over", schema=items(WORD)),
    Row("tools", ARRAY, "function, custom, namespace; those that the vendor runs are left out"),
    Row("tool_choice", ("string", "object"), "auto, none, required, a tool; others count as auto"),
    Row("parallel_tool_calls", FLAG, "false: one call at most"),
    Row(
        "reasoning",
        OBJECT,
        rows=(Row("effort", STRING, "none switches reasoning off"), *ignored("summary")),
    ),
    Row(
        "text",
        OBJECT,
        rows=(
            Row("format", OBJECT, "text, json_object, json_schema"),
            Row("verbosity", STRING, "told in the answer, without effect"),
        ),
    ),
    Row("metadata", OBJECT, "told in the answer"),
    Row("user", STRING, "told in the answer"),
    Row("safety_identifier", STRING, "told in the answer"),
    refused("background", FLAG, "nothing runs in the background"),
    refused("conversation", ("string", "object"), "send previous_response_id, or the whole input"),
    refused("prompt", OBJECT, "there are no stored prompts"),
    *ignored("stream_options", "truncation"),
    *ignored("prompt_cache_retention", "max_tool_calls", "context_management", "client_metadata"),
)
EMBEDDINGS = (
    MODEL,
    Row(
        "input",
        ("string", "array"),
        "a text, up to 2,048 of them, token ids, or lists of these",
        required=True,
        schema=items({**WORD, "minLength": 1}, TOKEN_ID, TOKEN_IDS, at_least=1),
    ),
    DIMENSIONS,
    Row("encoding_format", STRING, "float or base64", schema={"enum": ["float", "base64", None]}),
    TRUNCATE,
    *TURN,
    *ignored(*_SERVICE),
)


def most_tokens(cut: int | None) -> int | None:
    """To how many tokens texts are cut, of what is asked for; None: to none."""
    return MOST if cut is not None and cut < 1 else cut
