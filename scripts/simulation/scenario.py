"""What a run is about: how large the fleet, how fast, what it is asked, what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from protocol.config import ClusterConfig, GatewayConfig, HeartbeatConfig, QueueConfig, WorkerConfig
from scripts.simulation.service import Make
from scripts.simulation.traffic import Traffic
from scripts.simulation.worker import MODEL


@dataclass(frozen=True)
class Faults:
    """How many accidents of each kind happen, at random times, to random workers."""

    kills: int = 0
    hangs: int = 0
    pauses: int = 0
    partitions: int = 0
    sick: int = 0
    gateway_restarts: int = 0
    rolling: bool = False
    """One worker after another is drained and started again."""

    def __bool__(self) -> bool:
        return self != Faults()


@dataclass(frozen=True)
class Scenario:
    """A fleet and what it is asked."""

    traffic: Traffic
    workers: int = 16
    gateways: int = 4
    make: Make = field(default_factory=Make)
    slow: int = 4
    """Each so-manyth worker has half the speed; 0: none."""
    queue: int | None = None
    faults: Faults = field(default_factory=Faults)


def config_of(scenario: Scenario) -> ClusterConfig:
    """Production's configuration of the fleet, with its defaults."""
    workers = tuple(
        WorkerConfig(id=f"w{number}", model=MODEL, engine="fake", max_num_seqs=scenario.make.slots)
        for number in range(scenario.workers)
    )
    gateways = tuple(
        GatewayConfig(id=f"gw-{number}", http="127.0.0.1:0") for number in range(scenario.gateways)
    )
    return ClusterConfig(
        version=1,
        gateways=gateways,
        workers=workers,
        queue=QueueConfig(max_requests=scenario.queue),
        heartbeat=HeartbeatConfig(interval_s=scenario.make.beat_s),
    )


def make_of(scenario: Scenario, number: int) -> Make:
    """Of the worker of that number."""
    is_slow = scenario.slow and number % scenario.slow == scenario.slow - 1
    make = scenario.make
    return replace(make, speed=make.speed.times(0.5)) if is_slow else make
