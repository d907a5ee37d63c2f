"""One run: a fleet, its requests and its accidents, from a seed; and what came of it."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

from protocol.errors import ErrorCode
from scripts.simulation.audit import GATEWAY_LOST, LEFT, Audit, Record
from scripts.simulation.clock import Clock
from scripts.simulation.gateway import Gateway
from scripts.simulation.policies import POLICIES
from scripts.simulation.scenario import Scenario, config_of, make_of
from scripts.simulation.traffic import draw
from scripts.simulation.worker import Worker

WARM_UP = 0.2
"""The first fifth of the requests finds caches and averages empty, and is not measured."""
_LEAST_REST_S = 3.0
_LONGEST_S = 600.0
_GATEWAY_AWAY_S = 1.0
_DRAIN_S = 20.0
_AFTER_FAULTS_S = 60.0
"""Until the longest accident is over."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to. Times in seconds, of requests that were served; shares of 1."""

    wait_p50: float
    wait_p99: float
    first_p99: float
    refused: float
    """For want of a place: at once, or after waiting."""
    lost: float
    """Ended by an error of another kind."""
    hits: float
    """Of requests whose beginning came before, those that found it in their worker's cache."""
    busy: float
    """Answers "busy" of workers for each request."""
    starts: float
    """Times that each request was sent to a worker."""
    requests: int
    violations: tuple[str, ...]
    digest: str
    """Of everything that became of every request."""


class Fleet:
    """Owns all parts of one run."""

    def __init__(self, scenario: Scenario, policy: str, seed: int) -> None:
        self._scenario, self._seed = scenario, seed
        self.clock = Clock()
        config = config_of(scenario)
        self.audit = Audit(config.queue.timeout_s)
        requests = draw(scenario.traffic, scenario.gateways, seed)
        self.records = [Record(request, f"r{request.number}") for request in requests]
        book = {record.request_id: record for record in self.records}
        self.gateways = [
            Gateway(gateway.id, config, POLICIES[policy], self.clock, self.audit, book)
            for gateway in config.all_gateways
        ]
        self.workers = [
            Worker(worker.id, make_of(scenario, number), self.gateways, self.clock, self.audit, book)
            for number, worker in enumerate(config.workers)
        ]

    def run(self) -> Outcome:
        for gateway in self.gateways:
            gateway.start(self._seed)
        for worker in self.workers:
            worker.start(load_s=0.0)
        self.clock.run(1.0)
        for record in self.records:
            self._plan(record)
        self._plan_faults()
        last = 1.0 + max(record.request.at for record in self.records)
        self.clock.run(last + (_AFTER_FAULTS_S if self._scenario.faults else 0.0))
        while any(not record.ends for record in self.records) and self.clock.now < last + _LONGEST_S:
            self.clock.run(self.clock.now + 1.0)
        self.clock.run(self.clock.now + max(_LEAST_REST_S, 2 * self._scenario.make.beat_s))
        self._check_end()
        return self._outcome()

    def _plan(self, record: Record) -> None:
        self.clock.at(1.0 + record.request.at, self._ask, record)
        if record.request.leaves_at < float("inf"):
            self.clock.at(1.0 + record.request.leaves_at, self._leave, record)

    def _ask(self, record: Record) -> None:
        """Of its gateway, or of the next one that runs."""
        record.asked_at = self.clock.now
        self._gateway_of(record).ask(record)

    def _leave(self, record: Record) -> None:
        self._gateway_of(record).leave(record)

    def _gateway_of(self, record: Record) -> Gateway:
        first = record.request.gateway
        turns = (self.gateways[(first + k) % len(self.gateways)] for k in range(len(self.gateways)))
        return next((gateway for gateway in turns if gateway.up), self.gateways[first])

    def _plan_faults(self) -> None:
        """Within the time in which requests come."""
        faults, rng = self._scenario.faults, random.Random(f"faults {self._seed}")
        seconds = self._scenario.traffic.seconds

        def pause(worker: Worker) -> None:
            worker.pause(rng.uniform(1.0, 15.0))

        def part(worker: Worker) -> None:
            worker.part(rng.choice(self.gateways), rng.uniform(1.0, 30.0))

        def fall_sick(worker: Worker) -> None:
            worker.fall_sick(rng.uniform(2.0, 8.0))

        kinds = (
            (faults.kills, Worker.kill),
            (faults.hangs, Worker.hang),
            (faults.pauses, pause),
            (faults.partitions, part),
            (faults.sick, fall_sick),
        )
        for count, action in kinds:
            for _ in range(count):
                self.clock.at(1.0 + rng.uniform(0, seconds), action, rng.choice(self.workers))
        for _ in range(faults.gateway_restarts):
            gateway = rng.choice(self.gateways)
            self.clock.at(1.0 + rng.uniform(0, seconds), self._restart_gateway, gateway)
        if faults.rolling:
            for number, worker in enumerate(self.workers):
                at = 1.0 + seconds * (number + 0.5) / len(self.workers)
                self.clock.at(at, worker.drain, _DRAIN_S)
        if faults:
            self.clock.at(2.0, self._start_those_that_ended)

    def _start_those_that_ended(self) -> None:
        """The supervisor."""
        for worker in self.workers:
            worker.start()
        self.clock.at(self.clock.now + 1.0, self._start_those_that_ended)

    def _restart_gateway(self, gateway: Gateway) -> None:
        gateway.stop()
        self.clock.at(self.clock.now + _GATEWAY_AWAY_S, self._start_gateway, gateway)

    def _start_gateway(self, gateway: Gateway) -> None:
        gateway.start(self._seed)
        for worker in self.workers:
            worker.connect(gateway)

    def _check_end(self) -> None:
        self.audit.unended(self.records)
        self.audit.check_budgets()
        held = {worker.name: worker.held for worker in self.workers}
        for worker in self.workers:
            self.audit.at_rest(worker.name, "requests in hand", worker.held or 0)
        for gateway in self.gateways:
            gateway.check_rest(held)

    def _outcome(self) -> Outcome:
        measured = self.records[int(len(self.records) * WARM_UP) :]
        done = [record for record in measured if record.outcome == "done"]
        waits = sorted(record.entered_at - record.asked_at for record in done)
        firsts = sorted(record.first_at - record.asked_at for record in done)
        ends = [record.outcome for record in measured if record.outcome not in (GATEWAY_LOST, LEFT)]
        refused = sum(end in _REFUSED for end in ends)
        again = [record for record in done if record.request.returns]
        told = [(r.request_id, r.outcome, r.sends, r.tokens, r.cached, r.ended_at) for r in self.records]
        return Outcome(
            wait_p50=quantile(waits, 0.5),
            wait_p99=quantile(waits, 0.99),
            first_p99=quantile(firsts, 0.99),
            refused=refused / max(1, len(ends)),
            lost=(len(ends) - len(done) - refused) / max(1, len(ends)),
            hits=sum(r.cached >= 0.9 * r.request.shared for r in again) / max(1, len(again)),
            busy=self.audit.rejected / len(self.records),
            starts=sum(record.sends for record in self.records) / len(self.records),
            requests=len(self.records),
            violations=tuple(self.audit.violations),
            digest=hashlib.blake2b(repr(told).encode(), digest_size=8).hexdigest(),
        )


_REFUSED = frozenset({ErrorCode.OVERLOADED, ErrorCode.QUEUE_TIMEOUT, ErrorCode.NO_WORKER_AVAILABLE})


def quantile(values: list[float], share: float) -> float:
    """Of sorted values; 0 of none."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def simulate(scenario: Scenario, policy: str, seed: int) -> Outcome:
    """The same arguments give the same outcome, to the last digit."""
    return Fleet(scenario, policy, seed).run()
