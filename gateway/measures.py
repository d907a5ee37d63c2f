"""What `/metrics` tells, as a table: names, kinds, labels, buckets. The page of docs/ is made from it.

Labels are names that the configuration or the cluster knows, never what a client sends: however many
names clients try, there are as many series as before. The names of vLLM are used where it has one, since
other routers schedule by them and boards exist for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_SHORT_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_GAP_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)
_LONG_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_TOKENS = (1.0, 8.0, 32.0, 128.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 131072.0)


@dataclass(frozen=True)
class Measure:
    name: str
    """Without the `_total` that a counter gets."""
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_MODEL = ("model_name",)
_WORKER = ("worker",)

RUNNING = Measure("vllm:num_requests_running", "gauge", "Requests at a worker", _MODEL)
WAITING = Measure("vllm:num_requests_waiting", "gauge", "Requests in the gateway's line", _MODEL)
KV_USAGE = Measure(
    "vllm:kv_cache_usage_perc",
    "gauge",
    "Share of the KV cache's tokens that is held or promised, 0 to 1; only of workers that bound it",
    (*_MODEL, *_WORKER),
)
CACHE_CONFIG = Measure(
    "vllm:cache_config_info",
    "gauge",
    "Always 1; the KV cache of a worker in blocks, of one token each",
    (*_MODEL, *_WORKER, "block_size", "num_gpu_blocks"),
)
FIRST_TOKEN = Measure(
    "vllm:time_to_first_token_seconds", "histogram", "From the request to its first token", _MODEL, _SHORT_S
)
BETWEEN_TOKENS = Measure(
    "vllm:inter_token_latency_seconds",
    "histogram",
    "Between two steps that brought tokens of one answer",
    _MODEL,
    _GAP_S,
)
WHOLE = Measure(
    "vllm:e2e_request_latency_seconds",
    "histogram",
    "From the request to the end of its answer",
    _MODEL,
    _LONG_S,
)
QUEUED = Measure(
    "vllm:request_queue_time_seconds",
    "histogram",
    "From the request until it was sent to the worker that began it",
    (*_MODEL, "priority"),
    _SHORT_S,
)
PROMPT = Measure("vllm:request_prompt_tokens", "histogram", "Tokens of a prompt", _MODEL, _TOKENS)
GENERATION = Measure("vllm:request_generation_tokens", "histogram", "Tokens of an answer", _MODEL, _TOKENS)
PROMPT_TOKENS = Measure("vllm:prompt_tokens", "counter", "Tokens of prompts, of complete answers", _MODEL)
GENERATION_TOKENS = Measure("vllm:generation_tokens", "counter", "Tokens of complete answers", _MODEL)
PREFIX_QUERIES = Measure(
    "vllm:prefix_cache_queries", "counter", "Prompt tokens that were looked for in a prefix cache", _MODEL
)
PREFIX_HITS = Measure("vllm:prefix_cache_hits", "counter", "Those of them that were found", _MODEL)

REQUESTS = Measure(
    "studiofleet_requests",
    "counter",
    "Requests that ended, by outcome: `ok`, or an error's code; without a model where none was found",
    ("model", "code"),
)
QUEUE_DEPTH = Measure(
    "studiofleet_queue_depth", "gauge", "Requests in the gateway's line, by class", ("model", "priority")
)
RETRIES = Measure(
    "studiofleet_retries",
    "counter",
    "Requests that began anew at another worker, by the error of the one before",
    ("reason",),
)
TAKEOVERS = Measure(
    "studiofleet_takeovers",
    "counter",
    "Streams that went on at another worker, by the error of the one before",
    ("reason",),
)
BEGINNINGS = Measure(
    "studiofleet_prompt_beginnings",
    "counter",
    "Requests that were sent to workers by their prompt's beginning: `found` in the cache there, or `new`",
    ("model", "result"),
)
SLOW_READERS = Measure("studiofleet_slow_readers", "counter", "Clients cut off because they read too slowly")
BUFFERED = Measure(
    "studiofleet_stream_buffer_bytes", "gauge", "Text that waits in the gateway for slow clients"
)
STREAMS = Measure("studiofleet_open_streams", "gauge", "Answers under way")
LOOP_LAG = Measure(
    "studiofleet_event_loop_lag_seconds",
    "histogram",
    "How late the gateway's event loop is, ten times a second",
    (),
    _LAG_S,
)
MODEL_WORKERS = Measure(
    "studiofleet_model_ready_workers", "gauge", "Workers that take requests for the model", _MODEL
)
READY = Measure("studiofleet_worker_ready", "gauge", "Whether the worker takes requests", _WORKER)
WORKER_RUNNING = Measure(
    "studiofleet_worker_running", "gauge", "Requests in the worker's engine, of all gateways", _WORKER
)
WORKER_WAITING = Measure(
    "studiofleet_worker_waiting", "gauge", "Requests in the worker's waiting room, of all gateways", _WORKER
)
DECODE = Measure("studiofleet_worker_decode_tokens_per_second", "gauge", "Tokens sampled a second", _WORKER)
PREFILL = Measure(
    "studiofleet_worker_prefill_tokens_per_second", "gauge", "Prompt tokens computed a second", _WORKER
)
REJECTED = Measure(
    "studiofleet_worker_rejected", "counter", "Requests that the worker rejected as busy", _WORKER
)
RESTARTS = Measure(
    "studiofleet_worker_restarts", "counter", "Processes of the worker after the first one seen here", _WORKER
)
MEMORY = Measure(
    "studiofleet_worker_model_bytes", "gauge", "Memory that the worker holds for its model", _WORKER
)
HEARTBEAT_AGE = Measure(
    "studiofleet_worker_heartbeat_age_seconds", "gauge", "Since the worker's last heartbeat", _WORKER
)
STEP_AGE = Measure(
    "studiofleet_worker_step_age_seconds",
    "gauge",
    "Since its engine's last step; 0 while nothing is pending",
    _WORKER,
)
BREAKER = Measure("studiofleet_worker_breaker", "gauge", "1 for the breaker's state", (*_WORKER, "state"))

MEASURES = tuple(each for each in globals().values() if isinstance(each, Measure))
