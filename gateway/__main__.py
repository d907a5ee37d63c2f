"""`cluster-gateway --config FILE --id ID`: from arguments to a serving process, and to its end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import msgspec
import uvicorn

from gateway.admin import Admin
from gateway.app import make_app
from gateway.binding import BACKLOG, StartError, bind_http, bind_wire, connection_limit, url_of
from gateway.body import Intake
from gateway.client import Wire
from gateway.cluster import Cluster
from gateway.connection import Connection, end_overdue
from gateway.doors import Doors
from gateway.endpoint import Desk
from gateway.media.fetching import trusted
from gateway.media.intake import Pictures
from gateway.metrics import Metrics
from gateway.patience import KEEP_ALIVE_S
from gateway.quotas import Quotas, shared_storage
from gateway.secured import Secured
from gateway.sight import Sight
from gateway.tls import Tls
from gateway.traces import Traces
from gateway.watch import Watched
from protocol import logs
from protocol.addresses import LOCAL, SUPERVISOR, AddressError, Home
from protocol.config import ClusterConfig, GatewayConfig
from protocol.config_errors import ConfigError
from protocol.configfile import read_config
from protocol.errors import ClusterError, ErrorCode
from protocol.folders import leave_socket_folder
from protocol.keyfiles import KeyFileError
from protocol.locks import is_locked
from protocol.states import ExitCode
from protocol.traces import collector
from protocol.watchdog import Watchdog
from protocol.wire_keys import allowed_path, read_allowed

logger = logging.getLogger("gateway")

_POLL_S = 0.05
_SWEEP_S = 0.5
_DATE_S = 1.0
"""So old the time may be that answers tell."""
_FAREWELL_S = 2.0
"""So long the last answers may take to reach their clients."""


_YOUNG_OBJECTS = 50_000


def _spare_the_collector() -> None:
    """What is there at the start stays, and a token leaves no cycles to look for: less often will do."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers: stopping is decided here.

    Uvicorn looks ten times a second whether it should stop, and every tenth time at its clock.
    """

    def __init__(self, settings: uvicorn.Config) -> None:
        super().__init__(settings)
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stopped.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DATE_S):
                    await self._stopped.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    home = Home.from_environment(os.environ)
    try:
        cluster_config = read_config(options.config)
        gateway = cluster_config.gateway_named(options.id)
        if options.check:
            Tls.of(gateway)
            trusted(cluster_config.media.ca_file)
            Doors(home, gateway, cluster_config.auth)
            shared_storage(cluster_config.limits)
            return ExitCode.OK
        logs.set_up(cluster_config.log, gateway.id, home.log(gateway.id))
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        tls = Tls.of(gateway)
        doors = Doors(home, gateway, cluster_config.auth)
        process = _Gateway(cluster_config, gateway, home, options.config, tls, doors)
        listener = bind_http(gateway)
        wire = bind_wire(gateway, home, cluster_config)
    except (ConfigError, AddressError, StartError, KeyFileError) as error:
        sys.stderr.write(f"cluster-gateway: {error}\n")
        return ExitCode.MISCONFIGURED
    try:
        asyncio.run(process.serve(listener, wire))
    except Exception:
        logger.exception("the gateway failed")
        return ExitCode.FAULT
    return ExitCode.OK


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cluster-gateway", description="Serve one gateway of the cluster.")
    parser.add_argument("--config", type=Path, required=True, help="the cluster.toml")
    parser.add_argument("--id", required=True, help="the id of a gateway in it")
    parser.add_argument("--check", action="store_true", help="only say whether its files let it start")
    return parser.parse_args(arguments)


class _Gateway:
    """The life of the process, on its event loop."""

    def __init__(
        self,
        cluster_config: ClusterConfig,
        gateway: GatewayConfig,
        home: Home,
        path: Path,
        tls: Tls | None,
        doors: Doors,
    ) -> None:
        self._config = cluster_config
        self._gateway = gateway
        self._url_file = home.http_url(gateway.id)
        self._home = home
        self._path = path
        self._tls = tls
        self._doors = doors
        self._pictures = Pictures(cluster_config.media)
        self._allowed = Watched(allowed_path(home))
        self._shared = shared_storage(cluster_config.limits)
        self._collector = collector(cluster_config.traces, "studiofleet-gateway", gateway.id)
        self._stop = asyncio.Event()
        self._watchdog = Watchdog(cluster_config.heartbeat.loop_stall_s)

    async def serve(self, listener: socket.socket, wire: Wire) -> None:
        cluster = Cluster(self._config, self._gateway.id, wire)
        cluster.url = url_of(listener, "http" if self._tls is None else "https")
        self._read_home(cluster)
        self._look_on(cluster)
        server = self._server(cluster)
        self._handle_signals(cluster)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await _until(lambda: server.started or serving.done())
            self._url_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._tell_url(cluster)
            logger.info("gateway %s serves %s", self._gateway.id, cluster.url)
            _sweep(server)
            _spare_the_collector()
            stopping = asyncio.create_task(self._stop.wait())
            with self._watchdog:
                await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                await self._drain(cluster)
                await _farewell(server)
            server.stop()
            await serving
        finally:
            self._url_file.unlink(missing_ok=True)
            wire.close(linger_ms=1000)
            if "ipc" in self._gateway.listen:
                self._home.socket(self._gateway.id).unlink(missing_ok=True)  # ZeroMQ leaves it
                leave_socket_folder(self._home)
            if self._collector is not None:
                self._collector.close()
        logger.info("gateway %s ends", self._gateway.id)

    def _server(self, cluster: Cluster) -> _Server:
        limits = self._config.limits
        most = connection_limit(limits.max_connections)
        limits = msgspec.structs.replace(limits, max_connections=most)
        actions = Admin(cluster, limits, self._doors.admin, lambda: self._reload(cluster))
        quotas = Quotas(asyncio.get_running_loop().time, self._shared)
        intake = Intake(limits)
        sight = Sight(cluster.catalog, self._pictures, intake)
        collector = self._collector
        traces = None if collector is None else Traces(collector, self._config.traces.ratio)
        app = make_app(
            cluster,
            self._config,
            Desk(Metrics(cluster), limits, intake, quotas, sight, traces),
            actions,
            self._doors.access,
            lambda: len(server.server_state.connections),
        )
        protocols = functools.partial(Connection, limits) if self._tls is None else Secured(self._tls, limits)
        settings = uvicorn.Config(
            app,
            http=cast("type[asyncio.Protocol]", protocols),
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=int(KEEP_ALIVE_S),
        )
        server = _Server(settings)
        return server

    def _handle_signals(self, cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop, cluster)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up, cluster)

    def _asked_to_stop(self, cluster: Cluster) -> None:
        if cluster.stopping:
            logger.warning("asked twice to stop: %d requests are cut off", cluster.open_streams)
            self._url_file.unlink(missing_ok=True)
            os._exit(ExitCode.OK)
        logger.info("asked to stop: %d requests are finished first", cluster.open_streams)
        cluster.stopping = True
        self._stop.set()

    def _hung_up(self, cluster: Cluster) -> None:
        try:
            self._reload(cluster)
        except (ConfigError, StartError) as error:
            logger.error("the configuration was not read again, the old one holds: %s", error)

    def _reload(self, cluster: Cluster) -> int:
        """Learn what is configured and what the home says now; all else holds until the next start.

        The number of configured workers. Raises `ConfigError` and `StartError`.
        """
        cluster.reconfigure(read_config(self._path))
        self._read_home(cluster)
        count = len(cluster.catalog.configured)
        logger.info("read the configuration again: %d workers", count)
        return count

    def _read_home(self, cluster: Cluster) -> None:
        """The admin key, and which workers nobody will start."""
        self._look_for_supervisor(cluster)
        self._read_allowed(cluster)
        self._read_down_marks(cluster)
        self._doors.read_admin_key()

    def _read_down_marks(self, cluster: Cluster) -> None:
        cluster.mark_down(path.stem for path in self._home.run.glob("*.down"))

    def _tell_url(self, cluster: Cluster) -> None:
        """And of TLS the certificate, by which clusterctl knows that it is this gateway which answers."""
        lines = [cluster.url] if self._tls is None else [cluster.url, self._tls.fingerprint]
        self._url_file.write_text("".join(f"{line}\n" for line in lines))

    def _look_for_certificate(self, cluster: Cluster) -> None:
        try:
            if self._tls is not None and self._tls.was_renewed():
                self._tell_url(cluster)
                logger.info("the certificate was renewed; new connections get it")
        except StartError as error:
            logger.error("the certificate was not taken anew, the old one stays: %s", error)

    def _read_allowed(self, cluster: Cluster) -> None:
        try:
            cluster.allow(read_allowed(self._home))
        except KeyFileError as error:
            logger.error("who may come over tcp was not read again, the old list holds: %s", error)

    def _look_on(self, cluster: Cluster) -> None:
        """Now and from now on: which workers nobody would start again, which may come, and who may ask."""
        asyncio.get_running_loop().call_later(_SWEEP_S, self._look_on, cluster)
        self._watchdog.beat()
        self._look_for_supervisor(cluster)
        if self._config.supervisor != "process":  # nobody tells when a worker parks itself
            self._read_down_marks(cluster)
        self._look_for_certificate(cluster)
        if self._allowed.has_changed():
            self._read_allowed(cluster)
        self._doors.look()

    def _look_for_supervisor(self, cluster: Cluster) -> None:
        """Everyone holds a lock for life: the supervisor, and each worker."""
        supervised = self._config.supervisor != "process" or is_locked(self._home.lock(SUPERVISOR))
        ours = [] if supervised else [w.id for w in cluster.catalog.configured if w.node == LOCAL]
        cluster.mark_unattended(w for w in ours if not is_locked(self._home.lock(w)))

    async def _drain(self, cluster: Cluster) -> None:
        """Let requests finish; what is still there at the end of its time is told so."""
        cluster.stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.limits.drain_timeout_s):
                await _until(lambda: cluster.open_streams == 0)
        message = "this gateway is shutting down; ask again, or ask another"
        cluster.fail_all(ClusterError(ErrorCode.SHUTTING_DOWN, message))


def _sweep(server: _Server) -> None:
    """End connections that stand still, now and from now on."""
    loop = asyncio.get_running_loop()
    end_overdue(server.server_state.connections, loop.time())
    loop.call_later(_SWEEP_S, _sweep, server)


async def _farewell(server: _Server) -> None:
    """Let the last answers go out, then leave: who has not taken his by now does not get it."""
    for listening in server.servers:
        listening.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FAREWELL_S):
            await _until(lambda: not server.server_state.tasks)
    for connection in list(server.server_state.connections):
        cast("Connection", connection).transport.abort()


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (at start and end only)
        await asyncio.sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main())
