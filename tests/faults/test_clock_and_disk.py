"""Clocks that are set, and disks that are full, while a cluster serves."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.faults.aftermath import total, unscathed
from tests.faults.intruding import environ_with
from tests.faults.wrong_clock import set_by
from tests.integration.cluster import (
    config_text,
    fake_worker,
    running,
    wait_for,
)
from tests.integration.load import Load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

DAY_S = 86_400
WORKERS = fake_worker("w-1") + fake_worker("w-2")


def test_clocks_that_jump_by_a_day_and_back_change_nothing(tmp_path: Path):
    clock = tmp_path / "clock"
    set_by(clock, 0)
    environ = {**environ_with("wrong_clock", tmp_path), "WRONG_CLOCK": str(clock)}
    with running(config_text(WORKERS), gateways=()) as cluster:
        cluster.start("gateway", "gw-1", **environ)
        for worker_id in ("w-1", "w-2"):
            cluster.start("worker", worker_id, **environ)
        cluster.wait_ready("w-1", "w-2")
        with unscathed(cluster.home), Load(cluster.url, clients=4) as load:
            incarnations = {w["id"]: w["incarnation"] for w in cluster.state()["workers"]}
            for wrong_by in (DAY_S, -DAY_S, 0, 3600, 0):
                load.wait_for_answers(4)
                set_by(clock, wrong_by)
            load.wait_for_answers(4)
            assert {w["id"]: w["incarnation"] for w in cluster.state()["workers"]} == incarnations
            assert total(cluster.home, "studiofleet_retries_total") == 0
        assert set(load.outcomes) == {"ok"}


def test_a_worker_that_is_started_after_the_clock_was_set_back_replaces_the_one_that_was_killed(
    tmp_path: Path,
):
    """By its name it looks older than that one."""
    clock = tmp_path / "clock"
    set_by(clock, 0)
    environ = {**environ_with("wrong_clock", tmp_path), "WRONG_CLOCK": str(clock)}
    with running(config_text(WORKERS), "w-1") as cluster, unscathed(cluster.home):
        before = cluster.worker("w-1")["incarnation"]
        set_by(clock, -DAY_S)
        cluster.signal("w-1", signal.SIGKILL)
        cluster.wait_exit("w-1")
        cluster.start("worker", "w-1", **environ)
        wait_for(lambda: cluster.worker("w-1")["incarnation"] < before, "the new process to be taken")
        cluster.wait_ready("w-1")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_cluster_whose_logs_find_no_room_serves_and_ends_as_ever():
    with running(config_text(WORKERS, extra='[log]\nlevel = "debug"\n'), gateways=()) as cluster:
        for process_id in ("gw-1", "w-1", "w-2"):
            (cluster.home.logs / f"{process_id}.log").symlink_to("/dev/full")
        cluster.start("gateway", "gw-1")
        for worker_id in ("w-1", "w-2"):
            cluster.start("worker", worker_id)
        wait_for(cluster.home.http_url("gw-1").exists, "the gateway")
        cluster.wait_ready("w-1", "w-2")
        with unscathed(cluster.home, tracebacks=True), Load(cluster.url, clients=4) as load:
            load.wait_for_answers(8)
        assert set(load.outcomes) == {"ok"}
        for process_id in ("w-1", "gw-1"):
            cluster.signal(process_id, signal.SIGTERM)
            assert cluster.wait_exit(process_id) == 0
