import pytest

from protocol.addresses import Home
from protocol.parking import VAIN_STARTS, lift, park, why_parked
from protocol.states import ExitCode
from worker.attempts import Attempts

UNDER_LAUNCHD = {"STUDIOFLEET_SUPERVISOR": "launchd"}


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    home.run.mkdir()
    return home


def started(home, environ=UNDER_LAUNCHD):
    attempts = Attempts(home, "w", environ)
    return attempts, attempts.begin()


def test_after_so_many_faults_in_a_row_it_stays_down_and_says_why(home):
    codes = []
    for _ in range(VAIN_STARTS):
        attempts, goes = started(home)
        assert goes
        attempts.why = "the model is broken"
        codes.append(attempts.end(ExitCode.FAULT))
    assert codes == [ExitCode.FAULT] * (VAIN_STARTS - 1) + [ExitCode.OK]
    assert why_parked(home, "w") == "the model is broken"
    attempts, goes = started(home)
    assert (goes, attempts.end(ExitCode.OK)) == (False, ExitCode.OK)
    assert why_parked(home, "w") == "the model is broken"


def test_killed_so_often_it_stays_down_at_the_next_start(home):
    assert all(started(home)[1] for _ in range(VAIN_STARTS))
    assert not started(home)[1]
    assert "5 times" in (why_parked(home, "w") or "")


@pytest.mark.parametrize(("ready", "stays"), [(True, False), (False, True)])
def test_where_a_supervisor_counts_its_mark_goes_once_the_worker_is_ready(home, ready, stays):
    home.attempts("w").touch()
    attempts, goes = started(home, {})
    assert goes
    for _ in range(2):
        attempts.arrived(ready)
    assert home.attempts("w").exists() is stays
    assert attempts.end(ExitCode.FAULT) is ExitCode.FAULT


def test_once_ready_the_count_begins_anew(home):
    for _ in range(3 * VAIN_STARTS):
        attempts, goes = started(home)
        assert goes
        attempts.succeeded()
        assert attempts.end(ExitCode.FAULT) is ExitCode.FAULT
    assert list(home.run.iterdir()) == []


@pytest.mark.parametrize("code", [ExitCode.OK, ExitCode.RESTART])
def test_an_end_that_was_asked_for_is_not_in_vain(home, code):
    for _ in range(2 * VAIN_STARTS):
        attempts, goes = started(home)
        assert (goes, attempts.end(code)) == (True, code)


def test_what_a_person_has_to_repair_is_not_tried_again(home):
    attempts, _ = started(home)
    attempts.why = "there is no such model"
    assert attempts.end(ExitCode.MISCONFIGURED) is ExitCode.OK
    assert why_parked(home, "w") == "there is no such model"


def test_lifted_it_has_all_its_attempts(home):
    for _ in range(VAIN_STARTS):
        started(home)
    park(home, "w", "why")
    lift(home, "w")
    assert all(started(home)[1] for _ in range(VAIN_STARTS))


def test_after_a_boot_it_starts_and_counts_anew(home, monkeypatch):
    for _ in range(VAIN_STARTS):
        started(home)
    park(home, "w", "why")
    monkeypatch.setattr("protocol.parking.boot_id", lambda: "another")
    monkeypatch.setattr("worker.attempts.boot_id", lambda: "another")
    assert why_parked(home, "w") is None
    assert started(home)[1]
    assert not home.down_mark("w").exists()
    assert home.attempts("w").read_text() == "another 1\n"


def test_another_supervisor_counts_by_itself(home):
    for _ in range(2 * VAIN_STARTS):
        attempts, goes = started(home, {})
        assert (goes, attempts.end(ExitCode.FAULT)) == (True, ExitCode.FAULT)
    assert attempts.end(ExitCode.MISCONFIGURED) is ExitCode.MISCONFIGURED
    assert list(home.run.iterdir()) == []


def test_where_nothing_can_be_written_it_starts_and_ends_as_it_would(tmp_path):
    attempts, goes = started(Home(tmp_path / "missing"))
    assert goes
    assert attempts.end(ExitCode.MISCONFIGURED) is ExitCode.MISCONFIGURED


def test_a_count_that_is_none_counts_as_none(home):
    home.attempts("w").write_text("who knows")
    assert started(home)[1]
