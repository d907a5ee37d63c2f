"""Processes of several versions in one cluster, and the way from one version to the next."""

from __future__ import annotations

import signal
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from protocol.addresses import endpoint
from tests.faults.aftermath import total, unscathed
from tests.faults.intruding import environ_with
from tests.integration.cluster import Cluster, config_text, fake_worker, running, wait_for
from tests.integration.load import Load
from tests.integration.scripted_worker import ScriptedWorker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

GATEWAYS = ("gw-1", "gw-2")
WORKERS = "".join(fake_worker(worker_id) for worker_id in ("w-1", "w-2", "w-9"))


def _exchange(cluster: Cluster, worker_id: str, environ: dict[str, str]) -> None:
    """The worker ends in peace, and the next version of it comes."""
    cluster.signal(worker_id, signal.SIGTERM)
    assert cluster.wait_exit(worker_id) == 0
    cluster.start("worker", worker_id, **environ)
    for gateway_id in GATEWAYS:
        cluster.wait_ready(worker_id, gateway_id=gateway_id)


# FC-98: rolling upgrade hides the model
def test_fc_98_gateways_and_workers_of_three_versions_serve_while_each_is_exchanged(tmp_path: Path):
    spoken = environ_with("other_versions", tmp_path)
    earlier, later = ({**spoken, "STUDIOFLEET_SPEAKS": words} for words in ("earlier", "later"))
    with running(config_text(WORKERS, gateways=GATEWAYS), gateways=()) as cluster, ExitStack() as stack:
        cluster.start("gateway", "gw-1", **earlier)
        cluster.start("gateway", "gw-2", **later)
        cluster.start("worker", "w-1", **earlier)
        cluster.start("worker", "w-2")
        for gateway_id in GATEWAYS:
            cluster.wait_ready("w-1", "w-2", gateway_id=gateway_id)
        loads = [
            stack.enter_context(Load(partial(cluster.url, gateway_id), clients=3)) for gateway_id in GATEWAYS
        ]

        def go_on() -> None:
            for load in loads:
                load.wait_for_answers(6)

        with unscathed(cluster.home, GATEWAYS):
            go_on()
            _exchange(cluster, "w-1", later)  # from the one before to the one after
            go_on()
            _exchange(cluster, "w-2", earlier)  # and back
            go_on()
            stack.close()
        assert [set(load.outcomes) for load in loads] == [{"ok"}, {"ok"}]


def test_a_version_that_does_not_fit_is_refused_and_shown_and_the_others_serve():
    with running(config_text(WORKERS), "w-1") as cluster, unscathed(cluster.home):
        address = endpoint("ipc", "gw-1", cluster.home)
        with closing(ScriptedWorker(address, "w-9", model="fake-model", protocol=(9, 1))) as stranger:
            refused = stranger.hello().refused
            stranger.heartbeat()
            shown = cluster.worker("w-9")
        assert "protocol 9.1, this gateway 1.0" in refused
        assert (shown["state"], shown["detail"], shown["last_error"]) == ("stopped", "refused", refused)


def test_words_that_this_version_does_not_know_are_passed_over():
    with running(config_text(WORKERS), "w-1") as cluster, ExitStack() as stack:
        address = endpoint("ipc", "gw-1", cluster.home)
        card = {"fingerprint": "fake:fake-model"}
        with closing(ScriptedWorker(address, "w-9", model="fake-model", card=card, incarnation="0")) as peer:
            peer.hello()  # from now on it is known
        wait_for(lambda: cluster.worker("w-9")["detail"] == "not connected", "it to be missed")
        stack.enter_context(unscathed(cluster.home))
        with closing(ScriptedWorker(address, "w-9", model="fake-model", card=card)) as peer:
            assert peer.hello().refused == ""
            peer.heartbeat(state="hibernating")
            peer.settle()
            assert cluster.worker("w-9")["state"] == "hibernating"
            with Load(cluster.url, clients=2) as load:
                load.wait_for_answers(4)
            assert set(load.outcomes) == {"ok"}
            assert total(cluster.home, "studiofleet_retries_total") == 0
