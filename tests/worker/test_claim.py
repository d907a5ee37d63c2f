import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from protocol.addresses import Home
from worker.claim import Claim, NoRoomError

HOLD = """
import sys, time
from pathlib import Path
from protocol.addresses import Home
from worker.claim import Claim
claim = Claim(Home(Path(sys.argv[1])), "other")
claim.take(70, 100)
print("held", flush=True)
time.sleep(100)
"""


@pytest.fixture
def home(tmp_path):
    (tmp_path / "run").mkdir()
    return Home(tmp_path)


def test_what_fits_is_held_and_given_back(home):
    claim = Claim(home, "a")
    claim.take(60, 100)
    assert claim.held_mb == 60
    claim.release()
    claim.release()
    assert claim.held_mb == 0
    assert list(home.run.iterdir()) == []


def test_what_does_not_fit_is_refused_with_both_figures_and_the_holders(home):
    first, second = Claim(home, "a"), Claim(home, "b")
    first.take(60, 100)
    with pytest.raises(NoRoomError, match=r"needs 50 MB, and 40 MB of 100 MB are free \(held by a 60 MB\)"):
        second.take(50, 100)
    assert second.held_mb == 0
    second.take(40, 100)
    assert not list(home.run.glob("*.lock"))


def test_without_a_budget_everything_fits_and_counts_for_the_others(home):
    Claim(home, "always").take(500, None)
    with pytest.raises(NoRoomError, match="needs 1 MB, and -400 MB of 100 MB"):
        Claim(home, "b").take(1, 100)


def test_taking_twice_is_taking_once(home):
    claim = Claim(home, "a")
    claim.take(60, 100)
    claim.take(60, 100)
    assert claim.held_mb == 60


def test_a_file_that_an_earlier_process_left_counts_for_nothing(home):
    for name in ("a", "b"):
        home.memory_claim(name).write_text("100\n")
    claim = Claim(home, "a")
    claim.take(60, 100)
    assert home.memory_claim("a").read_text() == "60\n"
    assert not home.memory_claim("b").exists()


def test_what_a_killed_process_held_is_free_at_once(home):
    holder = subprocess.Popen([sys.executable, "-P", "-c", HOLD, str(home.path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        claim = Claim(home, "a")
        with pytest.raises(NoRoomError):
            claim.take(50, 100)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        claim.take(50, 100)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_of_many_who_come_at_once_only_those_that_fit_are_served(home):
    claims = [Claim(home, f"w{number}") for number in range(16)]

    def take(claim):
        try:
            claim.take(30, 100)
        except NoRoomError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(take, claims)) == 3
