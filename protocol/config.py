"""`cluster.toml`: the desired state, read strictly.

Unknown keys are errors with their path. Tables and values that are part of the format but not
built yet are refused by name, so that no setting is ever silently without effect.
"""

from __future__ import annotations

import tomllib
from typing import Any, Literal, get_args, get_origin

import msgspec

from protocol import config_rules
from protocol.addresses import LOCAL
from protocol.config_errors import ConfigError, explain
from protocol.config_media import MediaConfig
from protocol.config_tables import (
    EMBEDDED,
    AnthropicConfig,
    AuthConfig,
    GatewayConfig,
    HeartbeatConfig,
    LimitsConfig,
    LogConfig,
    ModelConfig,
    NodeConfig,
    QueueConfig,
    ResidencyConfig,
    RoutingConfig,
    Table,
    TakeoverConfig,
    TracesConfig,
    WorkerConfig,
)

__all__ = [
    "EMBEDDED",
    "AnthropicConfig",
    "AuthConfig",
    "ClusterConfig",
    "GatewayConfig",
    "HeartbeatConfig",
    "LimitsConfig",
    "LogConfig",
    "MediaConfig",
    "ModelConfig",
    "NodeConfig",
    "QueueConfig",
    "ResidencyConfig",
    "RoutingConfig",
    "TakeoverConfig",
    "TracesConfig",
    "WorkerConfig",
    "parse",
]


class ClusterConfig(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. Use `parse`; a struct built directly has not been checked."""

    version: Literal[1]
    supervisor: Literal["process", "launchd", "systemd"] = "process"
    gateway: GatewayConfig | None = None
    gateways: tuple[GatewayConfig, ...] = ()
    workers: tuple[WorkerConfig, ...] = ()
    queue: QueueConfig = QueueConfig()
    routing: RoutingConfig = RoutingConfig()
    takeover: TakeoverConfig = TakeoverConfig()
    residency: ResidencyConfig = ResidencyConfig()
    heartbeat: HeartbeatConfig = HeartbeatConfig()
    limits: LimitsConfig = LimitsConfig()
    auth: AuthConfig = AuthConfig()
    log: LogConfig = LogConfig()
    traces: TracesConfig = TracesConfig()
    models: tuple[ModelConfig, ...] = ()
    nodes: tuple[NodeConfig, ...] = ()
    anthropic: AnthropicConfig = AnthropicConfig()
    media: MediaConfig = MediaConfig()
    # Part of the format, not built yet: refused by `config_rules`.
    admin: Any = None

    @property
    def all_gateways(self) -> tuple[GatewayConfig, ...]:
        return self.gateways if self.gateway is None else (self.gateway, *self.gateways)

    @property
    def local_gateways(self) -> tuple[GatewayConfig, ...]:
        """Those that this machine runs."""
        return tuple(gateway for gateway in self.all_gateways if gateway.node == LOCAL)

    @property
    def local_workers(self) -> tuple[WorkerConfig, ...]:
        """Those that this machine runs."""
        return tuple(worker for worker in self.workers if worker.node == LOCAL)

    def workers_on(self, node: str) -> tuple[WorkerConfig, ...]:
        return tuple(worker for worker in self.workers if worker.node == node)

    def node_named(self, name: str) -> NodeConfig:
        """Raises `ConfigError` when there is none of that name."""
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes) or "none"
        raise ConfigError(
            f"no node has the name {name!r}; configured: {known}. To add one: clusterctl node add"
        )

    def gateway_named(self, gateway_id: str) -> GatewayConfig:
        """Raises `ConfigError` when there is none of that id."""
        for gateway in self.all_gateways:
            if gateway.id == gateway_id:
                return gateway
        known = ", ".join(g.id for g in self.all_gateways)
        raise ConfigError(f"no gateway has the id {gateway_id!r}; configured: {known}")

    def worker_named(self, worker_id: str) -> WorkerConfig:
        """Raises `ConfigError` when there is none of that id."""
        for worker in self.workers:
            if worker.id == worker_id:
                return worker
        known = ", ".join(w.id for w in self.workers) or "none"
        raise ConfigError(f"no worker has the id {worker_id!r}; configured: {known}")


def parse(text: str) -> ClusterConfig:
    """The configuration in a TOML text. Raises `ConfigError` with the path of the fault."""
    try:
        raw = tomllib.loads(text.removeprefix("\ufeff"))  # some editors write a byte order mark
    except (ValueError, RecursionError) as error:  # some faults (an endless number) have no type of their own
        raise ConfigError(f"not valid TOML: {error}") from error
    try:
        config = msgspec.convert(raw, ClusterConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(explain(str(error), raw, _all_keys(), _choices())) from error
    config_rules.check(config)
    return config


def _all_keys() -> set[str]:
    return {key for table in Table.__subclasses__() for key in table.__struct_fields__}


def _choices() -> dict[str, tuple[Any, ...]]:
    """The values of the keys that take only some."""
    fields = [field for table in Table.__subclasses__() for field in msgspec.structs.fields(table)]
    return {field.name: get_args(field.type) for field in fields if get_origin(field.type) is Literal}
