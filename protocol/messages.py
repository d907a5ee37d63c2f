"""Everything that is said on the wire between workers and gateways.

Rules of change: a field added after the first release has a default, no field changes its type
or meaning, a new message is a new class. Enumerations that may grow travel as strings.
A range that a field is given later must hold for everything that older versions send.
Messages of a request carry its id and the attempt, so that an answer to an attempt that was
given up is told from the answer to the present one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.values import (
    Capacity,
    ChatMessage,
    Count,
    Id,
    Load,
    Measure,
    ModelCard,
    NotNegative,
    SamplingParams,
    Share,
    Task,
    Timings,
    ToolSpec,
    Usage,
)

PROTOCOL_VERSION: tuple[int, int] = (1, 0)
"""(major, minor). Equal majors work together in both directions."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Base of all messages: the class name travels as the tag `type`."""


# --- worker to gateway -----------------------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Who I am and what I serve. Said on every connection, before the model is loaded, and
    again whenever the card changes."""

    protocol: tuple[int, int]
    worker_id: Id
    incarnation: str
    """New at each start; sorts by start time, so that the newest of an id is known."""
    node: str
    pid: int
    card: ModelCard
    capacity: Capacity
    state: str
    gateways: Count = 1
    """How many gateways this worker serves."""
    version: str = ""
    """Of the package that the worker runs; older ones do not tell."""


class Heartbeat(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The state and load of a worker, written by its event loop twice a second."""

    state: str
    load: Load = Load()
    progress: Share | None = None
    """While loading: 0 to 1."""
    detail: str = ""
    """While loading or failed: what is being done, or what is wrong."""
    decode_tokens_per_s: Measure = 0.0
    prefill_tokens_per_s: Measure = 0.0
    step_age_s: Measure = 0.0
    """Since the engine's last step; 0 while nothing is pending."""
    cache_epoch: NotNegative = 0
    resident_mb: NotNegative = 0
    """Memory that the worker holds for its model (MiB): from before it is loaded until it is freed."""
    makes_room: bool = False
    """The model is about to be freed."""
    idle_s: Measure = 0.0
    """How long the loaded model has had nothing to do."""
    load_s: Measure = 0.0
    """How long the last load took; 0 before the first."""


class Accepted(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A place was taken. Decided from slots and budgets alone, before template and tokens."""

    request_id: str
    attempt: int
    load: Load


class Rejected(Message, frozen=True, kw_only=True, omit_defaults=True):
    """No place, nothing was begun. May follow `Accepted`, never `Started`."""

    request_id: str
    attempt: int
    load: Load
    reason: str
    """`engine_busy`, `draining`, or `unloaded`: its model is not loaded at the moment."""
    retry_after_s: Measure = 0.0


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """The log-probability of one token. Grows at the end only."""

    token_id: int
    token: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()
    piece: bytes | None = None
    """What the token adds to the text, in bytes: none for a special token, None where unknown."""
    top_pieces: tuple[bytes | None, ...] = ()
    """Those of the alternatives."""


class Started(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The engine took the request: from here on it is never rejected."""

    request_id: str
    attempt: int
    prompt_tokens: NotNegative = 0
    cached_tokens: NotNegative = 0
    prompt_text: str = ""
    """Where the prompt is to be given back."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """The same, where log-probabilities are asked for. The first one means nothing."""


class ToolCallDelta(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a tool call: the name with the first piece, then pieces of its JSON arguments."""

    index: int
    name: str = ""
    arguments: str = ""


class Delta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one step added to one request. An array on the wire: grows at the end only."""

    request_id: str
    attempt: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    """All ids of the step, those of held-back text too."""
    completion_tokens: NotNegative = 0
    """So far."""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class Deltas(Message, frozen=True, kw_only=True, omit_defaults=True):
    """All deltas of one engine step for one gateway."""

    deltas: tuple[Delta, ...]


class Finished(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The answer is complete."""

    request_id: str
    attempt: int
    finish_reason: str
    """`stop`, `length` or `tool_calls`."""
    usage: Usage
    load: Load
    matched_stop: str | int | None = None
    """The stop string or token id that ended it, if one did."""
    timings: Timings = Timings()


class Failed(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The request ended without an answer. `code` is one of `protocol.errors.ErrorCode`."""

    request_id: str
    attempt: int
    code: str
    message: str
    load: Load
    param: str | None = None
    reason: str | None = None
    """A finer code for the dialect, e.g. `invalid_type`."""


class Result(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to `Embed` and `Score`, before their `Finished`; to `Tokenize`, `Stats`, `ClearCaches`."""

    request_id: str
    value: Any = None
    attempt: NotNegative = 0


class Goodbye(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The worker leaves on purpose."""

    reason: str


# --- gateway to worker -----------------------------------------------------------------------


class Welcome(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to `Hello`. With `refused`, the worker is not registered, for that reason."""

    gateway_id: str
    protocol: tuple[int, int]
    refused: str = ""


class WhoAreYou(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Asks a peer that the gateway does not know to say `Hello` again."""

    gateway_id: str


class Ping(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Sent twice a second: for the gateway the way to find a lost peer, for the worker the
    proof that somebody still reads its answers."""

    gateway_id: str = ""


class Generate(Message, frozen=True, kw_only=True, omit_defaults=True):
    """One answer to one prompt: either `messages` or `prompt`."""

    request_id: str
    attempt: int
    model: str
    sampling: SamplingParams
    seed: NotNegative
    """0 to 2**63 - 1. The gateway draws one where the client gave none."""
    messages: tuple[ChatMessage, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or `named:` and the name of a tool; workers that cannot force a call
    refuse the last two."""
    parallel_tool_calls: bool = True
    """False: the answer ends with its first call."""
    response_format: dict[str, Any] | None = None
    """What the answer has to be, in the words of vLLM's `structured_outputs`: one of `json` (a schema, as
    text), `json_object` (true), `regex`, `choice` (a list of texts) and `grammar`. And `field`: where the
    client wrote it, for errors. Workers that cannot do it refuse the request."""
    template_options: dict[str, Any] = {}
    """Further variables for the chat template."""
    priority: str = "normal"
    """`interactive`, `normal` or `batch`."""
    tenant: str = ""
    """The name of the API key by which it came."""
    time_left_s: Measure | None = None
    trace_context: dict[str, str] = {}
    resume_token_ids: tuple[int, ...] = ()
    """Ids already emitted elsewhere (take-over)."""
    echo: bool = False
    """Of a `prompt`: `Started` gives it back."""
    prompt_only: bool = False
    """With `echo`: nothing comes after the prompt."""
    cache_key: str = ""
    """What the client calls requests that begin alike; they go to the same workers."""


class Abort(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Ends a request, whatever its phase. Unknown ids are ignored."""

    request_id: str


class Embed(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Vectors for texts, of length 1. It lives like a `Generate`, but for `Deltas`.

    The value of its `Result` is a `Vectors`.
    """

    request_id: str
    inputs: tuple[str, ...]
    dimensions: Count | None = None
    """Only so many, of models whose first ones say the most; None: all."""
    attempt: NotNegative = 0
    model: str = ""
    token_ids: tuple[tuple[int, ...], ...] = ()
    """The inputs as ids; there are no `inputs` then."""
    most_tokens: Count | None = None
    """Inputs are cut to so many; None: longer ones than the model takes are refused."""
    priority: str = "normal"
    tenant: str = ""
    time_left_s: Measure | None = None
    trace_context: dict[str, str] = {}


class Score(Message, frozen=True, kw_only=True, omit_defaults=True):
    """How well texts answer queries: 0 to 1 for each pair. It lives like an `Embed`.

    The value of its `Result` is a `Scores`.
    """

    request_id: str
    attempt: int
    queries: tuple[str, ...]
    """One for all texts, or as many as there are texts."""
    texts: tuple[str, ...]
    model: str = ""
    most_tokens: Count | None = None
    """Texts are cut to so many; None: to what the model has room for."""
    priority: str = "normal"
    tenant: str = ""
    time_left_s: Measure | None = None
    trace_context: dict[str, str] = {}


class Tokenize(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The token ids of a text or of a rendered conversation; or, with `token_ids`, their text.

    The value of the `Result` has `text`, `token_ids`, `pieces` and `max_model_len`.
    """

    request_id: str
    text: str = ""
    messages: tuple[ChatMessage, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    template_options: dict[str, Any] = {}
    token_ids: tuple[int, ...] = ()
    special: bool = True
    """Of a text: with the tokens that begin a prompt."""
    pieces: bool = False
    """Tell the text of each token too."""


class Drain(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Take nothing new; when the running requests are done, `stay`, `exit` (0) or `restart` (75)."""

    then: str = "stay"
    timeout_s: Measure | None = None


class Undrain(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Take requests again."""


class LoadModel(Message, frozen=True, kw_only=True, omit_defaults=True, tag="Load"):
    """Load the weights of an idle worker. It says in its heartbeat why it does not."""


class Unload(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Free the weights; the process stays. Not done while requests are in hand, nor before the
    model that was just loaded has served anybody."""

    drain: bool = False
    """Take nothing new, finish what is in hand, and free them then."""


class Stats(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Ask for the engine's and its caches' statistics."""

    request_id: str


class ClearCaches(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Free the engine's caches."""

    request_id: str


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """A well-formed message of a kind that this version does not know. Never encoded."""

    tag: str


WorkerMessage = (
    Hello | Heartbeat | Accepted | Rejected | Started | Deltas | Finished | Failed | Result | Goodbye
)
GatewayMessage = (
    Welcome
    | WhoAreYou
    | Ping
    | Generate
    | Abort
    | Embed
    | Score
    | Tokenize
    | Drain
    | Undrain
    | LoadModel
    | Unload
    | Stats
    | ClearCaches
)
AnyMessage = WorkerMessage | GatewayMessage
Work = Generate | Embed | Score
"""What takes a place in a worker, and is queued, retried and aborted."""
TASKS: dict[type[Work], Task] = {Generate: Task.GENERATE, Embed: Task.EMBED, Score: Task.RERANK}
