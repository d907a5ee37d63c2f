"""What doctor knows of a machine and of what is installed on it. Values only; None where nobody tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from clusterctl.memory_fit import Fit
from clusterctl.memory_fit import Machine as Memory
from clusterctl.services import ServiceState
from protocol.config import ClusterConfig
from protocol.reachability import Reach

MAC = "Darwin"


@dataclass(frozen=True)
class Job:
    """One of ours that launchd has loaded, beside the property list it was loaded from."""

    label: str
    domain: str
    """`system`, or `gui/UID`."""
    loaded: ServiceState
    exit_timeout_s: int | None
    """As the list has it now; None: it names none, or is not there."""
    throttle_s: int | None
    list_is_there: bool


@dataclass(frozen=True)
class Mac:
    """What only macOS has."""

    version: str = ""
    build: str = ""
    translated: bool = False
    """This program runs as one for Intel."""
    power: Mapping[str, str] = field(default_factory=dict)
    """As `pmset -g` has it."""
    filevault: bool | None = None
    installs_updates: bool | None = None
    firewall: bool | None = None
    firewall_blocks: bool | None = None
    """What comes in for the Python that runs here."""
    wired_bytes: int | None = None
    panics: tuple[str, ...] = ()
    """The names of their reports, of the last days."""
    jobs: tuple[Job, ...] = ()


@dataclass(frozen=True)
class Machine:
    """The machine, whatever is installed on it."""

    system: str = ""
    """As `uname -s` has it."""
    arch: str = ""
    memory: Memory | None = None
    descriptors: int | None = None
    """So many a process may have at most; None: no limit, or unknown."""
    free_bytes: Mapping[Path, int] = field(default_factory=dict)
    """Of the folders that matter, or the nearest above them that is there."""
    boot_unit: bool | None = None
    """Whether something is started at boot or login; None: there is nothing that could."""
    mac: Mac | None = None


@dataclass(frozen=True)
class Place:
    """A file or folder that is for its owner alone."""

    path: Path
    mode: int
    ours: bool
    is_folder: bool


@dataclass(frozen=True)
class Certificate:
    """What a gateway serves HTTPS with."""

    gateway: str
    cert: Path
    fault: str = ""
    """Why it and its key cannot be used, with the cure."""
    expires: datetime | None = None


@dataclass(frozen=True)
class ModelPlace:
    """The model, or adapter, of a worker."""

    worker: str
    path: Path
    missing: str = ""
    damaged: str = ""


@dataclass(frozen=True)
class Clock:
    """Of a gateway, as its answers tell it."""

    gateway: str
    ahead_s: float


@dataclass(frozen=True)
class Installation:
    """A home: its configuration, its files and what runs of it."""

    config_file: Path = Path()
    config: ClusterConfig | None = None
    config_error: str = ""
    version: str = ""
    logs: Path = Path()
    models: Path = Path()
    prefix_cache: Path = Path()
    log_bytes: int = 0
    prefix_cache_bytes: int = 0
    places: tuple[Place, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    model_places: tuple[ModelPlace, ...] = ()
    fit: Fit | None = None
    """The workers of this machine against its memory."""
    supervised: bool = False
    """A supervisor answers."""
    alive: Mapping[str, int] = field(default_factory=dict)
    """The pids of what runs, by id, as their pid files tell; the supervisor left out."""
    strays: Mapping[int, str] = field(default_factory=dict)
    """The ids of processes that run without anybody knowing, by pid."""
    parked: Mapping[str, str] = field(default_factory=dict)
    """Why, by id."""
    outdated: tuple[str, ...] = ()
    """Those that run with an older configuration."""
    leftovers: tuple[str, ...] = ()
    """The ids of processes that have ended and left files behind."""
    busy: tuple[tuple[str, str], ...] = ()
    """Gateways that do not run, and the address of theirs that another program has."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of what runs, by id."""
    reached: tuple[Reach, ...] = ()
    """Gateways as this program reaches them over tcp."""
    cut_off: Mapping[str, tuple[Reach, ...]] = field(default_factory=dict)
    """Gateways that workers, by id, do not reach, as they logged it."""
    clocks: tuple[Clock, ...] = ()

    @property
    def has_to_run(self) -> bool:
        """Whether the configuration has anything for this machine."""
        return self.config is not None and bool(self.config.local_gateways or self.config.local_workers)


@dataclass(frozen=True)
class Facts:
    """All that the checks judge."""

    now: datetime
    user_folder: Path
    machine: Machine = Machine()
    home: Installation = Installation()

    @property
    def on_mac(self) -> bool:
        return self.machine.system == MAC
