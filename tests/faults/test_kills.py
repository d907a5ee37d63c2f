"""`kill -9` of supervisor, gateway and worker, alone and in pairs, in every order, under load.

KILL_ROUNDS sets the number of rounds, KILL_SEED repeats a run.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.integration.cluster import wait_for
from tests.integration.load import Load
from tests.integration.operating import Operator, operating

ROUNDS = int(os.environ.get("KILL_ROUNDS", "10"))
SEED = int(os.environ.get("KILL_SEED", "0")) or random.randrange(1, 1_000_000)
VICTIMS = ("supervisor", "gw-1", "fake-1")
CASES = [*((victim,) for victim in VICTIMS), *itertools.permutations(VICTIMS, 2)]
EXPECTED = {
    "ok",
    "worker_lost",  # a stream whose worker was killed
    "poison_request",  # one whose worker was killed twice before it had a token
    "ConnectError",  # the rest: whose gateway was killed
    "ReadError",
    "RemoteProtocolError",
    "UnsupportedProtocol",  # no gateway's address is known
}

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120 + 20 * ROUNDS)]


class Watch:
    """Looks all the time how many processes of each id there are."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.looks = 0
        self.doubled: set[str] = set()

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            self.looks += 1
            self.doubled |= {name for name, count in self._operator.generations().items() if count > 1}


@pytest.fixture
def operator() -> Iterator[Operator]:
    with operating() as operator:
        yield operator


def cases(rng: random.Random) -> Iterator[tuple[str, ...]]:
    """All, in a random order, and again."""
    while True:
        yield from rng.sample(CASES, len(CASES))


def kill(operator: Operator, victim: str) -> None:
    pid = int((operator.home.run / f"{victim}.pid").read_text().split('"pid":')[1].split(",")[0])
    os.kill(pid, signal.SIGKILL)


def test_one_generation_of_each_id_and_everything_serves_again(operator):
    print(f"KILL_SEED={SEED}")
    rng = random.Random(SEED)
    operator.init("fake-1", "fake-2")
    operator.run("up", "--wait")
    with Watch(operator) as watch, Load(operator.url, clients=4) as load:
        for victims in itertools.islice(cases(rng), ROUNDS):
            load.wait_for_answers(4)
            print(victims)
            for victim in victims:
                kill(operator, victim)
                time.sleep(rng.choice((0.0, 0.05, 0.7)))  # the case: another moment each time
            operator.run("up", "--wait")
            assert operator.answers(), victims
    assert watch.looks > ROUNDS
    assert watch.doubled == set()
    assert operator.generations() == {"gw-1": 1, "fake-1": 1, "fake-2": 1}
    assert set(load.outcomes) <= EXPECTED, load.outcomes
    operator.run("down")
    wait_for(lambda: operator.processes() == [], "everything to have ended")
    assert list(operator.home.run.iterdir()) == []


def test_a_supervisor_that_is_killed_while_it_starts_everything_leaves_no_second_generation(operator):
    """Also in the moment in which a process runs and its pid is not yet written."""
    rng = random.Random(SEED)
    operator.init("fake-1", "fake-2")
    with Watch(operator) as watch:
        for _ in range(max(3, ROUNDS // 3)):
            up = operator.begin("up")
            record = operator.home.run / "supervisor.pid"
            wait_for(record.exists, "the supervisor")
            time.sleep(rng.uniform(0.0, 0.05))
            kill(operator, "supervisor")
            up.communicate(timeout=60)
            operator.run("up", "--wait")
            assert operator.generations() == {"gw-1": 1, "fake-1": 1, "fake-2": 1}
            operator.run("down")
            assert operator.generations() == {}
    assert watch.doubled == set()


def test_a_process_without_a_pid_file_is_found_by_its_command_line(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    before = operator.pids()
    kill(operator, "supervisor")
    wait_for(lambda: not psutil.pid_exists(before[0]), "the supervisor to be gone")
    (operator.home.run / "fake-1.pid").unlink()
    (operator.home.run / "gw-1.pid").unlink()
    operator.run("up", "--wait")
    assert operator.pids()[1:] == before[1:]
    assert operator.worker("fake-1")["outdated"]  # with what it was started nobody knows
    assert operator.answers()
    operator.run("restart", "fake-1", "--wait")
    assert not operator.worker("fake-1")["outdated"]
