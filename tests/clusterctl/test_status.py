import msgspec
import pytest

from clusterctl.admin import AdminState, GatewayView, QueueView, WorkerView, ready_pids
from clusterctl.control import ProcessView, Reply
from clusterctl.processes import Record
from clusterctl.progress import Outcome, judge, progress_lines
from clusterctl.status import Sources, cluster_status
from gateway.breaker import BreakerState
from gateway.status import workers
from protocol.config import parse

CONFIG = parse(
    'version = 1\n[gateway]\nid = "g"\nhttp = "127.0.0.1:0"\n'
    '[[workers]]\nid = "w"\nmodel = "/models/m"\nmax_num_seqs = 16\n'
)


def process(process_id, **changes):
    view = ProcessView(
        id=process_id,
        kind="gateway" if process_id == "g" else "worker",
        phase="running",
        pid=7,
        ready=False,
        starts=1,
        restarts=0,
        last_exit=None,
        last_error="",
        outdated=False,
        wanted=True,
    )
    return msgspec.structs.replace(view, **changes)


def picture(*processes, workers=(), queues=(), records=None, gateway=True, config=CONFIG):
    gateways = (GatewayView(id="g", url="http://127.0.0.1:1", state="ready", pid=7),)
    state = AdminState(gateways=gateways, workers=workers, queues=queues)
    return cluster_status(
        Sources(
            config=config,
            supervisor=Reply(pid=1, config="f", stopping=False, processes=processes) if processes else None,
            records=records or {},
            states={"g": state} if gateway else {},
        )
    )


def test_with_nothing_running_everything_is_stopped():
    status = picture(gateway=False)
    assert [p.state for p in status.processes] == ["stopped", "stopped"]
    assert status.supervisor.pid is None
    assert status.workers[0].max_num_seqs == 16
    assert status.workers[0].max_waiting == 2


def test_the_gateways_word_and_the_supervisors_counts_stand_together():
    seen = WorkerView(id="w", state="ready", pid=7, running=3, rejected=2, incarnation="i", breaker="closed")
    status = picture(process("g"), process("w", restarts=4, last_error="was killed"), workers=(seen,))
    worker = status.workers[0]
    assert (worker.state, worker.running, worker.rejected, worker.incarnation) == ("ready", 3, 2, "i")
    assert (worker.restarts, worker.last_error) == (4, "was killed")
    assert (status.gateways[0].url, status.gateways[0].state) == ("http://127.0.0.1:1", "ready")


def test_what_a_gateway_remembers_of_an_earlier_process_is_not_believed():
    old = WorkerView(id="w", state="ready", pid=6, running=3)
    worker = picture(process("w"), workers=(old,)).workers[0]
    assert (worker.state, worker.running, worker.pid) == ("starting", None, 7)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"phase": "waiting", "pid": None, "starts": 0}, "starting"),
        ({"phase": "waiting", "pid": None, "starts": 2}, "failed"),
        ({"phase": "running"}, "starting"),
        ({"phase": "running", "ready": True}, "ready"),
        ({"phase": "stopping"}, "draining"),
        ({"phase": "stopped", "pid": None}, "stopped"),
        ({"phase": "parked", "pid": None}, "parked"),
    ],
)
def test_without_a_gateway_the_supervisor_tells_the_state(changes, state):
    assert picture(process("w", **changes), gateway=False).workers[0].state == state


def test_a_worker_of_another_machine_is_as_its_gateway_says_and_not_given_up_while_none_hears_it():
    config = parse(
        'version = 1\n[gateway]\nid = "g"\nhttp = "127.0.0.1:0"\n[[nodes]]\nname = "n"\nhost = "h"\n'
        '[[workers]]\nid = "w"\nmodel = "/models/m"\nnode = "n"\n'
    )
    seen = WorkerView(id="w", state="ready", pid=7, running=3)
    lost = WorkerView(id="w", state="stopped", pid=None)
    pictures = [picture(process("g"), workers=w, config=config).workers[0] for w in ((seen,), (lost,), ())]
    assert [worker.state for worker in pictures] == ["ready", "starting", "starting"]
    assert [worker.detail for worker in pictures[1:]] == ["it is connected to no gateway"] * 2


def test_a_worker_that_was_ready_and_hears_no_gateway_any_more_does_not_count_as_ready():
    lost = WorkerView(id="w", state="stopped", pid=None, last_error="it is silent")
    worker = picture(process("w", ready=True), workers=(lost,)).workers[0]
    assert (worker.state, worker.detail) == ("starting", "it is connected to no gateway")
    assert picture(process("w", ready=True)).workers[0].state == "ready"


def test_the_gateway_that_is_connected_to_a_worker_tells_of_it():
    never, here = WorkerView(id="w"), WorkerView(id="w", state="ready", pid=7, heartbeat_age_s=0.4)
    status = cluster_status(
        Sources(
            config=CONFIG,
            supervisor=Reply(pid=1, config="f", stopping=False, processes=(process("w"),)),
            records={},
            states={"g": AdminState(workers=(never,)), "h": AdminState(workers=(here,))},
        )
    )
    assert status.workers[0].state == "ready"


def test_a_process_that_stops_is_draining_whatever_the_gateway_heard_last():
    seen = WorkerView(id="w", state="ready", pid=7)
    assert picture(process("w", phase="stopping"), workers=(seen,)).workers[0].state == "draining"


def test_without_a_supervisor_the_pid_files_and_the_gateway_tell():
    record = Record(pid=9, identity="", kind="worker", digest="", drain_s=1.0)
    assert picture(records={"w": record}, gateway=False).workers[0].pid == 9
    seen = WorkerView(id="w", state="loading", pid=9, progress=0.5)
    worker = picture(records={"w": record}, workers=(seen,)).workers[0]
    assert (worker.state, worker.progress, worker.restarts) == ("loading", 0.5, None)


def test_a_worker_that_is_not_configured_is_shown_too():
    stranger = WorkerView(id="z", model="m", state="ready", pid=3, running=1)
    status = picture(process("w"), workers=(stranger,))
    assert [(w.id, w.state, w.running) for w in status.workers[1:]] == [("z", "ready", 1)]


def test_rejections_and_queues_are_added_up_over_gateways_and_the_freshest_view_counts():
    def state(age, running):
        worker = WorkerView(id="w", state="ready", pid=7, rejected=2, running=running, heartbeat_age_s=age)
        return AdminState(workers=(worker,), queues=(QueueView(model="m", waiting=3),))

    status = cluster_status(
        Sources(
            config=CONFIG,
            supervisor=Reply(pid=1, config="f", stopping=False, processes=(process("w"),)),
            records={},
            states={"g": state(5.0, 1), "h": state(0.1, 4)},
        )
    )
    assert (status.workers[0].rejected, status.workers[0].running) == (4, 4)
    assert status.queues == (QueueView(model="m", waiting=6),)


def test_the_answer_of_a_newer_gateway_is_read_too():
    text = b'{"gateways": [{"id": "g", "new": 1}], "workers": [{"id": "w", "running": 2}], "more": []}'
    state = msgspec.json.decode(text, type=AdminState)
    assert state.workers[0].running == 2


def test_only_processes_that_serve_are_ready():
    state = AdminState(
        gateways=(GatewayView(id="g", pid=1),),
        workers=(WorkerView(id="a", state="ready", pid=2), WorkerView(id="b", state="loading", pid=3)),
    )
    assert ready_pids([state]) == {"g": 1, "a": 2}


def test_a_worker_that_has_been_idle_for_a_while_counts_as_one_that_was_ready():
    idle = WorkerView(id="a", state="idle", pid=2, state_age_s=9.9)
    assert ready_pids([AdminState(workers=(idle,))]) == {}
    assert ready_pids([AdminState(workers=(msgspec.structs.replace(idle, state_age_s=10.0),))]) == {"a": 2}


def test_a_cluster_has_arrived_when_all_serve():
    seen = WorkerView(id="w", state="ready", pid=7)
    assert judge(picture(process("g"), process("w"), workers=(seen,)))[0] is Outcome.READY


def test_a_loading_worker_is_awaited_and_its_progress_told():
    seen = WorkerView(id="w", state="loading", pid=7, progress=0.4, detail="weights")
    status = picture(process("g"), process("w"), workers=(seen,))
    outcome, words = judge(status)
    assert outcome is Outcome.PENDING
    assert "w: loading 40% (weights)" in words
    assert progress_lines(status)["w"] == "w: loading 40% (weights)"


def test_a_parked_worker_ends_the_wait_with_its_reason():
    parked = process("w", phase="parked", pid=None, last_error="no such folder")
    outcome, words = judge(picture(process("g"), parked))
    assert outcome is Outcome.FAILED
    assert words == "w: parked: no such folder"


def test_a_worker_that_is_started_again_is_awaited():
    failed = process("w", phase="waiting", pid=None, last_error="broke")
    assert judge(picture(process("g"), failed))[0] is Outcome.PENDING


def test_what_a_gateway_says_of_workers_that_never_spoke_is_understood():
    told = workers(CONFIG.workers, (), {}, lambda _view: BreakerState.CLOSED, 0.0)
    state = msgspec.json.decode(msgspec.json.encode({"gateways": [], "workers": told}), type=AdminState)
    assert [(w.id, w.state, w.incarnation) for w in state.workers] == [("w", "stopped", None)]


def test_a_parked_process_brings_the_end_of_its_log():
    status = picture(process("g"), process("w", phase="parked", pid=None, last_log=("one", "two")))
    assert status.workers[0].last_log == ("one", "two")
    assert status.gateways[0].last_log == ()


def test_a_worker_that_was_taken_out_is_there_until_it_has_ended():
    leaving = process("old", phase="stopping", wanted=False)
    status = picture(process("g"), process("w"), leaving, gateway=False)
    assert [(w.id, w.state, w.pid) for w in status.workers] == [("w", "starting", 7), ("old", "draining", 7)]
    known = picture(process("g"), process("w"), leaving, workers=(WorkerView(id="old", state="draining"),))
    assert [w.id for w in known.workers] == ["w", "old"]
