"""What a well-formed configuration may still have wrong: names, addresses, what does not go together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from protocol.addresses import LOCAL, SUPERVISOR, AddressError, is_loopback, split_http, tcp_host
from protocol.config_errors import ConfigError
from protocol.config_media import check_media
from protocol.values import Name

if TYPE_CHECKING:
    from protocol.config import ClusterConfig
    from protocol.config_tables import (
        GatewayConfig,
        HeartbeatConfig,
        LimitsConfig,
        TracesConfig,
        WorkerConfig,
    )

ENGINES = ("batched", "serial", "vision", "embeddings", "fake")
_WITH_ADAPTERS = ("batched", "serial")
_STORAGES = ("redis", "rediss", "valkey", "valkeys")
_CLASS_PATH = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")


def check(config: ClusterConfig) -> None:
    """Raises `ConfigError` with the first fault."""
    _refuse_what_is_not_built(config)
    _check_ids(config)
    _check_names(config)
    _check_storage(config.limits)
    _check_heartbeat(config.heartbeat)
    _check_traces(config.traces)
    check_media(config.media)
    for gateway in config.all_gateways:
        _check_gateway(gateway, config)
    _check_nodes(config)
    for worker in config.workers:
        _check_worker(worker)


def _refuse_what_is_not_built(config: ClusterConfig) -> None:
    if config.admin is not None:
        raise ConfigError("`[admin]` is not available in this version; remove the table")
    if config.supervisor == "systemd":
        raise ConfigError(
            'supervisor = "systemd" is not available in this version;'
            ' write supervisor = "process", and have it started by systemd: clusterctl boot install'
        )


def _check_ids(config: ClusterConfig) -> None:
    if not config.all_gateways:
        raise ConfigError('there is no gateway; add a [gateway] table with an id and http = "127.0.0.1:8000"')
    seen: set[str] = set()
    for process_id in (*(g.id for g in config.all_gateways), *(w.id for w in config.workers)):
        if process_id == SUPERVISOR:
            raise ConfigError(f"the id {SUPERVISOR!r} is reserved; choose another")
        if process_id in seen:
            raise ConfigError(f"the id {process_id!r} is used twice; ids name processes and must differ")
        seen.add(process_id)


def _check_names(config: ClusterConfig) -> None:
    """A name means one model: requests for it may go to any worker that has it."""
    meaning: dict[str, WorkerConfig] = {}
    for worker in config.workers:
        for name in (worker.name, *worker.aliases):
            first = meaning.setdefault(name, worker)
            if (first.name, first.model, first.adapter) != (worker.name, worker.model, worker.adapter):
                raise ConfigError(
                    f"the name {name!r} stands for two models: {_described(first)} and {_described(worker)};"
                    " give one of them another served_name or alias"
                )
    names = {name: worker.name for name, worker in meaning.items()}
    for model in config.models:
        for alias in model.aliases:
            if (first_name := names.setdefault(alias, model.name)) != model.name:
                raise ConfigError(
                    f"[[models]] {model.name!r}: the alias {alias!r} means {first_name!r} already; remove one"
                )


def _described(worker: WorkerConfig) -> str:
    adapted = f" with the adapter {worker.adapter!r}" if worker.adapter is not None else ""
    return f"{worker.model!r}{adapted} (worker {worker.id!r}, served as {worker.name!r})"


def _check_storage(limits: LimitsConfig) -> None:
    if limits.storage is None:
        return
    url = urlsplit(limits.storage)
    if url.scheme not in _STORAGES or not url.hostname:
        raise ConfigError(
            f"limits.storage: {limits.storage[:100]!r} is no address of a storage; write redis://HOST:PORT/0"
            f" ({', '.join(_STORAGES)})"
        )
    if url.password:
        raise ConfigError(
            "limits.storage: the password stands in the address; put it into a file of its own (chmod 600),"
            " and name that: storage_password_file"
        )


def _check_heartbeat(heartbeat: HeartbeatConfig) -> None:
    if heartbeat.loop_stall_s < 2 * heartbeat.interval_s:
        raise ConfigError(
            f"[heartbeat]: loop_stall_s = {heartbeat.loop_stall_s:g} has to be twice interval_s"
            f" = {heartbeat.interval_s:g} at least: a loop shows with each heartbeat that it runs"
        )


def _check_traces(traces: TracesConfig) -> None:
    if traces.endpoint is None:
        return
    url = urlsplit(traces.endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(
            f"traces.endpoint: {traces.endpoint[:100]!r} is no address of a collector;"
            " write http://HOST:4318/v1/traces"
        )
    if url.password:
        raise ConfigError(
            "traces.endpoint: a password stands in the address; send spans to a collector of this machine,"
            " and have that one sign in elsewhere"
        )


def _check_gateway(gateway: GatewayConfig, config: ClusterConfig) -> None:
    where = f"gateway {gateway.id!r}"
    try:
        host, _port = split_http(gateway.http)
    except AddressError as error:
        raise ConfigError(f"{where}: http: {error}") from error
    if not is_loopback(host):
        _check_open(gateway, config, where)
    if (gateway.tls_cert is None) != (gateway.tls_key is None):
        lacking = "tls_key" if gateway.tls_key is None else "tls_cert"
        raise ConfigError(f"{where}: {lacking} is missing: a certificate and its key go together")
    if not gateway.listen:
        raise ConfigError(f'{where}: listen is empty, so no worker could connect; write listen = ["ipc"]')
    for listen in gateway.listen:
        if listen == "ipc":
            continue
        try:
            tcp_host(listen)
        except AddressError as error:
            raise ConfigError(f"{where}: listen: {error}") from error


def _check_open(gateway: GatewayConfig, config: ClusterConfig, where: str) -> None:
    if any(worker.engine == "fake" for worker in config.workers) and not gateway.allow_fake:
        raise ConfigError(
            f"{where}: a worker with the fake engine would answer other machines;"
            " remove it, or write allow_fake = true"
        )


def _check_nodes(config: ClusterConfig) -> None:
    names = [node.name for node in config.nodes]
    for name in names:
        if name == LOCAL or names.count(name) > 1:
            why = "is this machine" if name == LOCAL else "is used twice"
            raise ConfigError(f"[[nodes]]: the name {name!r} {why}; choose another")
    for worker in config.workers:
        if worker.node != LOCAL and worker.node not in names:
            raise ConfigError(
                f"worker {worker.id!r}: node {worker.node!r} is unknown; write 'local', or one of [[nodes]]:"
                f" {', '.join(names) or 'none yet; to add one: clusterctl node add'}"
            )


def _check_worker(worker: WorkerConfig) -> None:
    where = f"worker {worker.id!r}"
    if worker.engine not in ENGINES and _CLASS_PATH.match(worker.engine) is None:
        raise ConfigError(
            f"{where}: engine {worker.engine!r} is unknown;"
            f" write one of {', '.join(ENGINES)}, or package.module:Class"
        )
    if worker.prefix_cache_disk_mb and not worker.prefix_cache_mb:
        raise ConfigError(
            f"{where}: prefix_cache_disk_mb has no effect without prefix_cache_mb; set both, or remove it"
        )
    if worker.adapter is not None and worker.engine not in _WITH_ADAPTERS:
        raise ConfigError(
            f"{where}: the engine {worker.engine!r} takes no adapter; remove it, or take one of"
            f" {', '.join(_WITH_ADAPTERS)}"
        )
    if worker.engine == "serial" and worker.slots != 1:
        raise ConfigError(
            f"{where}: the engine 'serial' serves one request at a time, not {worker.slots};"
            " remove max_num_seqs, or let some wait: max_waiting"
        )
    try:
        msgspec.convert(worker.name, Name)
    except msgspec.ValidationError:
        raise ConfigError(
            f"{where}: {worker.name[:300]!r} cannot be a model's name; set served_name to 1 to 256 characters"
            " on one line"
        ) from None
