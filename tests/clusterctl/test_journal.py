"""The journal of operations: what is written down, what counts as interrupted, who takes it up."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from clusterctl import journal
from protocol.addresses import Home

CUT_OFF = """
import os, signal, sys
from pathlib import Path
from clusterctl import journal
from protocol.addresses import Home
with journal.operation(Home(Path(sys.argv[1])), "upgrade", {"node": "studio-2"}) as operation:
    with operation.step("install"):
        pass
    with operation.step("switch", was="0.1"):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def files(home: Home) -> list[Path]:
    return sorted((home.path / "state" / "ops").iterdir())


def cut_off(home: Home) -> journal.Entry:
    ended = subprocess.run([sys.executable, "-c", CUT_OFF, str(home.path)], env=os.environ, check=False)
    assert ended.returncode == -signal.SIGKILL
    (entry,) = journal.interrupted(home)
    return entry


def test_an_operation_that_ends_well_is_done_with_its_steps(home: Home):
    with journal.operation(home, "add-worker", {"worker": "a"}) as operation:
        with operation.step("key"):
            assert operation.entry.reached == "in the step 'key'"
        assert operation.entry.reached == "after the step 'key'"
        assert journal.interrupted(home) == []
    (path,) = files(home)
    assert path.name.endswith("-add-worker.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert '"outcome": "done"' in path.read_text()
    assert journal.interrupted(home) == []


def fails(it: AbstractContextManager[journal.Operation | None], *, left_open: bool) -> None:
    with it as operation:
        assert operation is not None
        if left_open:
            operation.leave_open()
        with operation.step("start"):
            raise ValueError("no room")


def test_one_that_raises_has_failed_for_that_reason_unless_it_is_left_open(home: Home):
    with pytest.raises(ValueError, match="no room"):
        fails(journal.operation(home, "apply", {}), left_open=False)
    assert '"error": "ValueError: no room"' in files(home)[0].read_text()
    assert journal.interrupted(home) == []
    with pytest.raises(ValueError, match="no room"):
        fails(journal.operation(home, "apply", {}), left_open=True)
    assert [entry.reached for entry in journal.interrupted(home, "apply")] == ["in the step 'start'"]
    assert journal.interrupted(home, "upgrade") == []


def test_one_that_was_killed_is_found_and_taken_up_once(home: Home):
    entry = cut_off(home)
    assert entry.has_begun("switch")
    assert not entry.has_begun("prune")
    assert [(step.name, step.done is not None) for step in entry.steps] == [
        ("install", True),
        ("switch", False),
    ]
    assert entry.steps[-1].facts == {"was": "0.1"}
    assert entry.reached == "in the step 'switch'"
    assert entry.words.startswith("upgrade (node studio-2) of 20")
    with journal.taken_up(home, entry) as operation:
        assert operation is not None
        with journal.taken_up(home, entry) as second:
            assert second is None
        assert journal.interrupted(home) == []
        operation.outcome = "undone"
    assert '"outcome": "undone"' in files(home)[0].read_text()
    with journal.taken_up(home, entry) as again:
        assert again is None


def test_taking_up_that_fails_leaves_it_to_the_next_when_it_says_so(home: Home):
    entry = cut_off(home)
    with pytest.raises(ValueError, match="no room"):
        fails(journal.taken_up(home, entry), left_open=True)
    assert [left.begun for left in journal.interrupted(home)] == [entry.begun]


def test_steps_side_by_side_are_all_written_down(home: Home):
    def take(number: int) -> None:
        with operation.step(f"step {number}"):
            pass

    with journal.operation(home, "apply", {}) as operation, ThreadPoolExecutor(4) as pool:
        list(pool.map(take, range(20)))
    assert {step.name for step in operation.entry.steps if step.done} == {f"step {n}" for n in range(20)}


def test_old_ones_are_pruned_and_open_ones_never(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(journal, "KEPT", 3)
    entry = cut_off(home)
    for _ in range(6):
        with journal.operation(home, "apply", {}):
            pass
    names = [path.name for path in files(home)]
    assert names[0] == entry.file
    assert len(names) == 1 + 3 + 1  # the open one, those kept before the last one began, and that one


def test_a_file_that_is_none_of_ours_is_left_alone(home: Home):
    with journal.operation(home, "apply", {}):
        pass
    other = files(home)[0].parent / "notes.json"
    other.write_text("mine")
    assert journal.interrupted(home) == []
    with journal.operation(home, "apply", {}):
        pass
    assert other.read_text() == "mine"
