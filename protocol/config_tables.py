"""The tables of `cluster.toml`, as strict frozen structs. Every default is written here once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from protocol.addresses import LOCAL
from protocol.values import Count, Id, Name, NotNegative

Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]

FileName = Annotated[str, msgspec.Meta(min_length=1)]

EMBEDDED = "embedded"
"""The model name that stands for the small model which the project brings along."""


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all tables."""


class GatewayConfig(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[gateway]`: one HTTP endpoint."""

    id: Id
    http: str
    """Where clients connect: HOST:PORT."""
    node: Literal["local", "elsewhere"] = "local"
    """`elsewhere`: workers of this machine connect to it, and nothing here starts it."""
    listen: tuple[str, ...] = ("ipc",)
    """Where workers connect: `ipc`, or `tcp://ADDRESS:PORT`, encrypted, for those with a key."""
    insecure_tcp: bool = False
    """Take workers over tcp without encryption and keys: whoever reaches the address can be one."""
    tls_cert: FileName | None = None
    """A file with the certificate, in PEM, and those that vouch for it: clients are served over HTTPS."""
    tls_key: FileName | None = None
    """The file of its private key, for its owner alone."""
    allow_fake: bool = False
    """Accept fake workers although the endpoint is open beyond this machine."""
    open_without_keys: bool = False
    """Bind an address that other machines reach, although no API keys are configured."""


class WorkerConfig(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[workers]]`: one process that serves one model."""

    id: Id
    model: str
    """`embedded`, a folder, `ORGANISATION/NAME` after `clusterctl model pull` of it, or (for a foreign
    engine) whatever its class takes."""
    node: str = LOCAL
    """The machine that it runs on: this one, or the name of a `[[nodes]]` entry."""
    served_name: Name | None = None
    """Default: the last part of the model's name."""
    aliases: tuple[Name, ...] = ()
    engine: str = "batched"
    """`batched`, `serial`, `vision`, `fake`, or `package.module:Class`. `batched` is `vision` for models that
    are known to see."""
    engine_options: dict[str, Any] = {}
    adapter: FileName | None = None
    """A folder that `mlx_lm.lora` wrote for the model."""
    max_num_seqs: Count | None = None
    """Requests that are computed together. Default: 8; the engine `serial` takes one."""
    max_waiting: NotNegative | None = None
    """Default: max_num_seqs // 8."""
    max_model_len: Count | None = None
    """Default: what the model was made for."""
    kv_tokens: Count | None = None
    """Prompt and answer tokens of all admitted requests together. Default: unbounded."""
    prefix_cache_mb: NotNegative = 256
    """Memory for the beginnings of prompts that come again. 0: none."""
    prefix_cache_disk_mb: NotNegative = 0
    """Disk for those of them that were of use; they outlive the worker. 0: none."""
    tool_parser: str | None = None
    """How the model writes tool calls: `hermes`, `none`, or one of mlx-lm's parsers by its name.
    Default: found in its chat template and vocabulary."""
    reasoning_parser: str | None = None
    """How the model marks reasoning: `think`, `none`, or two marks with a space between them.
    Default: as for `tool_parser`."""
    drain_timeout_s: Seconds = 60.0
    load_stall_s: Seconds = 120.0
    """A load that makes no progress for so long is given up; one that does may take as long as it needs."""
    step_stall_s: Seconds = 30.0
    """An engine that has work and makes no step for so long, or for five times what its slowest steps took,
    hangs: its process ends, and is started again."""
    residency: Literal["always", "on_demand"] = "always"
    """`on_demand`: the process runs without weights until somebody asks for the model."""
    idle_timeout: Seconds = 600.0
    """An on-demand worker without requests for so many seconds frees its weights."""
    memory_mb: NotNegative | None = None
    """What the model takes when it is loaded (MiB). Default: from the size of its weight files."""
    memory_limit_mb: Count | None = None
    """At 85 % of it the worker takes nothing new (MiB). Default: what the device recommends, or has."""

    @property
    def name(self) -> str:
        """The name under which clients ask for the model."""
        if self.served_name is not None:
            return self.served_name
        if self.model == EMBEDDED:
            return "smollm2-135m"
        return self.model.rstrip("/").rsplit("/", 1)[-1]

    @property
    def slots(self) -> int:
        """`max_num_seqs`, or what it is by default."""
        if self.max_num_seqs is not None:
            return self.max_num_seqs
        return 1 if self.engine == "serial" else 8

    @property
    def waiting_room(self) -> int:
        return self.slots // 8 if self.max_waiting is None else self.max_waiting


class NodeConfig(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[nodes]]`: another machine on which workers run, reached with ssh."""

    name: Id
    """Its host key is pinned under this name."""
    host: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_:%.\[\]][A-Za-z0-9_:%.\[\]-]*(?!\n)$")]
    """A name or an address, or one of the ssh configuration's."""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None
    """Of its sshd. Default: what the ssh configuration says, else 22."""
    user: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(?!\n)$")] | None = None
    """As whom to log in; the workers run as this user. Default: what the ssh configuration says."""
    identity: FileName | None = None
    """The file of a private key for ssh. Default: those of the ssh configuration, and the agent's."""
    prefix: Annotated[str, msgspec.Meta(pattern=r"^/[^\x00-\x1f\x7f]*[^/\x00-\x1f\x7f](?!\n)$")] = (
        "/opt/studiofleet"
    )
    """The folder there that holds everything of ours."""
    memory_budget_mb: Count | None = None
    """For the models of that machine together (MiB). Default: as `[residency]` says."""
    supervisor: Literal["process", "launchd"] = "process"
    """Who starts its workers again when they fail: our own supervisor, or its launchd (at boot, too)."""


class ModelConfig(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[models]]`: further names of a model that workers serve."""

    name: Name
    """As workers serve it."""
    aliases: tuple[Name, ...] = ()
    patterns: tuple[Name, ...] = ()
    """Names with `*` and `?` in them, such as `claude-*`; a name that is taken comes first."""
    list_aliases: bool = False
    """Show each alias as a model of its own, for clients that pick by name."""
    takeover: bool = True
    """False: its streams end with an error when their worker is lost."""


class AnthropicConfig(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[anthropic]`: the dialect of `/v1/messages`."""

    drop_billing_line: bool = True
    """Leave out the line of one coding agent that changes with each request, at the head of the system
    text: with it, no prefix would ever be found in a cache."""


class QueueConfig(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[queue]`: requests that wait in a gateway for a place in a worker."""

    max_requests: NotNegative | None = None
    """Per model. Default: max(16, 2 x slots / gateways), at most 1,024."""
    timeout_s: Seconds = 60.0
    """At least this long; longer where the model's own service time is."""
    batch_timeout_s: Seconds = 600.0
    """The same for requests of the class batch."""


class RoutingConfig(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[routing]`: how a worker is chosen."""

    busy_tries: Count = 3
    """So many different workers are tried at once before the request is queued."""
    busy_pause_s: Seconds = 0.25
    """A worker that rejected is left alone for so long, or until it reports again."""
    attempts: Count = 3
    """So many workers are tried at most when one after another is lost without a token."""
    answer_timeout_s: Seconds = 5.0
    """Without `Accepted` or `Rejected` for so long, the request goes elsewhere."""
    stall_s: Seconds = 30.0
    """The requests of a worker that beats, but whose engine made no step for so long, go elsewhere."""


class TakeoverConfig(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[takeover]`: streams whose worker is lost go on at another one."""

    enabled: bool = True


class ResidencyConfig(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[residency]`: which models are in memory."""

    memory_budget_mb: Count | None = None
    """For the models of one machine together (MiB). Default: three quarters of its memory."""
    when_cold: Literal["wait", "refuse"] = "wait"
    """A request for an on-demand model that is not loaded waits, or is told to come again."""


class HeartbeatConfig(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[heartbeat]`: how processes notice one another."""

    interval_s: Seconds = 0.5
    """Between two heartbeats of a worker, and between two pings of a gateway."""
    suspect_s: Seconds = 3.0
    """A worker silent for so long is chosen only if there is no other."""
    lost_s: Seconds = 10.0
    """A peer silent for so long is lost."""
    loop_stall_s: Annotated[float, msgspec.Meta(ge=2, le=1e9)] = 30.0
    """A gateway or worker whose own event loop stands still for so long ends, and is started again."""


class LimitsConfig(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[limits]`: what a gateway takes from its clients."""

    max_body_bytes: Count = 32 * 1024 * 1024
    max_connections: Count = 2048
    body_timeout_s: Seconds = 60.0
    """For reading the head of a request, and as long again for its body."""
    request_timeout_s: Seconds = 1800.0
    keepalive_s: Seconds = 10.0
    """A silent stream gets a comment after so long."""
    drain_timeout_s: Seconds = 60.0
    """Running requests get so long when the gateway is stopped."""
    stream_buffer_bytes: Count = 1024 * 1024
    """A client that lets so much pile up unread is disconnected."""
    stream_stall_s: Seconds = 30.0
    """A client that takes nothing for so long although something is there is disconnected."""
    storage: str | None = None
    """`redis://HOST:PORT/0` or `valkey://…`: what API keys take a minute is counted there, for all gateways
    that name it. Default: each gateway counts for itself, and forgets at its end."""
    storage_password_file: str | None = None


class AuthConfig(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[auth]`: what is asked of clients, where the home has API keys."""

    metrics: Literal["local", "key", "open"] = "local"
    """`/metrics` takes no key from this machine, takes one from all, or from nobody."""
    hosts: tuple[str, ...] = ()
    """Names by which this machine may ask for what it is told without a key, beside addresses, `localhost`
    and the gateway's own in `http`."""


class TracesConfig(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[traces]`: one trace of each request, for a collector. Needs: scripts/install --traces."""

    endpoint: str | None = None
    """Where all processes send spans, by OTLP over HTTP: `http://HOST:4318/v1/traces`. Default: nowhere."""
    ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """The share of requests that have a trace; who sends a `traceparent` has decided that."""


class LogConfig(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[log]`"""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"
    """`json`: one object a line, for programs; on a terminal it is text all the same."""
    max_bytes: Annotated[int, msgspec.Meta(ge=4096)] = 16 * 1024 * 1024
    """A log file that has so many is moved aside: ID.log becomes ID.log.1."""
    keep: Count = 4
    """So many older files are kept for each process."""
