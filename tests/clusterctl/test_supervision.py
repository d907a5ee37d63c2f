from dataclasses import replace

import pytest

from clusterctl import supervision
from clusterctl.supervision import Forget, Kill, Kind, Phase, Process, Spec, Start, Terminate
from protocol.states import ExitCode

WORKER = Spec(id="w", kind=Kind.WORKER, drain_s=60.0, digest="one")
GATEWAY = Spec(id="g", kind=Kind.GATEWAY, drain_s=60.0, digest="one")


def fresh(spec=WORKER):
    return supervision.want({}, [spec], 100.0, retry=False)[spec.id]


def running(spec=WORKER):
    return supervision.started(fresh(spec), pid=7)


def table(*processes):
    return {process.spec.id: process for process in processes}


def test_what_the_configuration_names_is_started_at_once():
    processes = supervision.want({}, [GATEWAY, WORKER], 100.0, retry=False)
    assert supervision.decide(processes, 100.0) == [Start("g"), Start("w")]


def test_a_running_process_is_left_alone():
    assert supervision.decide(table(running()), 1e6) == []


def test_a_process_no_longer_named_is_asked_to_end_and_then_forgotten():
    processes = supervision.want(table(running()), [], 200.0, retry=False)
    assert supervision.decide(processes, 200.0) == [Terminate("w")]
    stopping = supervision.terminated(processes["w"], 200.0)
    assert supervision.decide(table(stopping), 200.0) == []
    ended = supervision.exited(stopping, 0, "", 201.0)
    assert ended.phase is Phase.STOPPED
    assert supervision.decide(table(ended), 201.0) == [Forget("w")]


@pytest.mark.parametrize(("after_s", "actions"), [(69.9, []), (70.0, [Kill("w")])])
def test_who_does_not_end_is_killed_ten_seconds_after_its_drain_time(after_s, actions):
    stopping = supervision.terminated(replace(running(), wanted=False), 200.0)
    assert supervision.decide(table(stopping), 200.0 + after_s) == actions


def test_the_last_error_is_past_once_the_operator_starts_it_again():
    parked = supervision.exited(running(), ExitCode.MISCONFIGURED, "no such folder", 200.0)
    assert parked.last_error == "no such folder"
    assert supervision.asked_to_restart(parked, 201.0, 60.0).last_error == ""
    crashed = supervision.started(supervision.exited(running(), ExitCode.FAULT, "broke", 200.0), 8)
    assert crashed.last_error == "broke"
    told = supervision.asked_to_restart(crashed, 300.0, 60.0)
    assert supervision.exited(told, ExitCode.RESTART, "", 301.0).last_error == ""


def test_it_is_killed_once():
    stopping = supervision.terminated(replace(running(), wanted=False), 200.0)
    assert supervision.decide(table(supervision.killed(stopping)), 1e6) == []


def test_a_process_named_again_while_it_ends_is_started_afterwards():
    stopping = supervision.terminated(replace(running(), wanted=False), 200.0)
    again = supervision.want(table(stopping), [WORKER], 201.0, retry=False)["w"]
    ended = supervision.exited(again, 0, "", 205.0)
    assert supervision.decide(table(ended), 205.0) == [Start("w")]


def test_pauses_double_from_half_a_second_to_thirty():
    process, pauses = running(GATEWAY), []
    for _ in range(9):
        process = supervision.exited(process, 70, "broken", 100.0)
        pauses.append(process.due - 100.0)
        process = supervision.started(process, pid=8)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_paused_process_is_started_when_its_time_has_come():
    paused = supervision.exited(running(), 70, "broken", 100.0)
    assert supervision.decide(table(paused), 100.4) == []
    assert supervision.next_due(table(paused)) == 100.5
    assert supervision.decide(table(paused), 100.5) == [Start("w")]


@pytest.mark.parametrize(("ready_s", "pause_s"), [(9.9, 16.0), (10.0, 0.5)])
def test_ten_seconds_of_ready_reset_the_pause(ready_s, pause_s):
    ready = supervision.seen_ready(replace(running(), pause_s=8.0), 7, 100.0)
    ended = supervision.exited(ready, 70, "broken", 100.0 + ready_s)
    assert ended.due - (100.0 + ready_s) == pause_s


def test_a_worker_is_parked_after_five_exits_in_a_row_without_ready():
    process = running()
    for exits in range(1, 6):
        process = supervision.exited(process, 70, "no weights", 100.0)
        assert (process.phase is Phase.PARKED) == (exits == 5)
        process = process if exits == 5 else supervision.started(process, pid=8)
    assert process.last_error == "no weights"
    assert supervision.decide(table(process), 1e6) == []


def test_having_been_ready_starts_the_count_anew():
    process = replace(running(), vain_exits=4)
    ready = supervision.seen_ready(process, 7, 100.0)
    assert supervision.exited(ready, 70, "", 101.0).phase is Phase.WAITING


def test_a_gateway_is_never_given_up_for_its_exits():
    process = replace(running(GATEWAY), vain_exits=50)
    assert supervision.exited(process, 70, "", 100.0).phase is Phase.WAITING


@pytest.mark.parametrize("spec", [WORKER, GATEWAY])
def test_misconfigured_parks_at_once_with_the_reason(spec):
    parked = supervision.exited(running(spec), ExitCode.MISCONFIGURED, "no such folder", 100.0)
    assert (parked.phase, parked.last_error) == (Phase.PARKED, "no such folder")


def test_an_exit_on_purpose_stays_down():
    stopped = supervision.exited(running(), ExitCode.OK, "", 100.0)
    assert stopped.phase is Phase.STOPPED
    assert supervision.decide(table(stopped), 1e6) == []


def test_an_asked_restart_comes_without_pause_and_counts_as_no_failure():
    again = supervision.exited(replace(running(), vain_exits=4), ExitCode.RESTART, "", 100.0)
    assert supervision.decide(table(again), 100.0) == [Start("w")]
    assert again.vain_exits == 0


def test_an_end_whose_code_nobody_knows_leads_to_a_restart():
    assert supervision.exited(running(), None, "", 100.0).phase is Phase.WAITING


@pytest.mark.parametrize("phase", [Phase.STOPPED, Phase.PARKED, Phase.WAITING])
def test_up_starts_again_what_is_down(phase):
    process = Process(spec=WORKER, phase=phase, due=500.0, vain_exits=5, pause_s=30.0)
    retried = supervision.want(table(process), [WORKER], 100.0, retry=True)
    assert supervision.decide(retried, 100.0) == [Start("w")]
    assert retried["w"].vain_exits == 0


def test_another_change_of_the_file_does_not_wake_what_is_parked():
    parked = Process(spec=WORKER, phase=Phase.PARKED)
    assert supervision.want(table(parked), [WORKER], 100.0, retry=False)["w"] == parked


def test_a_change_of_its_own_entry_wakes_what_is_parked():
    parked = Process(spec=WORKER, phase=Phase.PARKED)
    changed = supervision.want(table(parked), [replace(WORKER, digest="two")], 100.0, retry=False)
    assert supervision.decide(changed, 100.0) == [Start("w")]


def test_a_running_process_keeps_the_digest_it_was_started_with():
    changed = supervision.want(table(running()), [replace(WORKER, digest="two")], 100.0, retry=True)["w"]
    assert changed.phase is Phase.RUNNING
    assert (changed.running_digest, changed.spec.digest) == ("one", "two")


def test_ready_is_believed_only_from_the_present_process():
    process = running()
    assert supervision.seen_ready(process, 6, 100.0).ready_at is None
    assert supervision.seen_ready(process, 7, 100.0).ready_at == 100.0


def test_the_first_moment_of_ready_counts():
    ready = supervision.seen_ready(running(), 7, 100.0)
    assert supervision.seen_ready(ready, 7, 105.0).ready_at == 100.0


def test_restarts_are_counted_without_the_first_start():
    process = running()
    assert process.restarts == 0
    process = supervision.started(supervision.exited(process, 70, "", 100.0), pid=8)
    assert process.restarts == 1


def test_down_ends_what_runs_and_forgets_what_does_not():
    paused = supervision.exited(running(GATEWAY), 70, "", 100.0)
    processes = supervision.want_nothing(table(paused, running()))
    assert supervision.decide(processes, 100.0) == [Forget("g"), Terminate("w")]


def test_with_nothing_due_there_is_nothing_to_wait_for():
    assert supervision.next_due(table(running())) is None


def test_a_running_process_that_is_to_restart_is_started_when_it_has_ended_whatever_its_code():
    stopping = supervision.asked_to_restart(replace(running(), vain_exits=2, pause_s=8.0), 200.0, 5.0)
    assert supervision.decide(table(stopping), 214.9) == []
    assert supervision.decide(table(stopping), 215.0) == [Kill("w")]
    for code in (ExitCode.OK, ExitCode.RESTART, ExitCode.FAULT, ExitCode.MISCONFIGURED, -9, None):
        ended = supervision.exited(stopping, code, "", 203.0)
        assert (ended.vain_exits, ended.pause_s, ended.last_error) == (0, 0.0, "")
        assert supervision.decide(table(ended), 203.0) == [Start("w")]


def test_a_process_that_is_to_restart_is_not_started_when_everything_is_to_end():
    stopping = supervision.asked_to_restart(running(), 200.0, 5.0)
    ended = supervision.exited(supervision.want_nothing(table(stopping))["w"], 75, "", 203.0)
    assert supervision.decide(table(ended), 203.0) == [Forget("w")]


@pytest.mark.parametrize("phase", [Phase.PARKED, Phase.STOPPED, Phase.WAITING])
def test_whoever_has_ended_is_only_started_and_begins_anew(phase):
    down = replace(fresh(), phase=phase, due=1e9, vain_exits=5, pause_s=30.0)
    again = supervision.asked_to_restart(down, 200.0, 5.0)
    assert supervision.decide(table(again), 200.0) == [Start("w")]
    assert (again.vain_exits, again.pause_s) == (0, 0.0)


def test_the_log_of_a_parked_process_is_forgotten_when_it_starts():
    parked = replace(fresh(), phase=Phase.PARKED, last_log=("why",))
    assert supervision.started(parked, pid=9).last_log == ()
