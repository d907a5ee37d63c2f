"""The alert rules of deploy/monitoring: their names exist, and they fire in a real Prometheus."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gateway.measures import MEASURES
from protocol.config import parse
from tests.integration.cluster import config_text, fake_worker, running, wait_for

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"
RULES = (FOLDER / "alerts.yml").read_text()
NAMES = {measure.name for measure in MEASURES}

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed: apt-get install prometheus"
)


def test_each_name_in_a_rule_is_told_by_a_gateway():
    used = set(
        re.findall(r"\b(?:vllm:|studiofleet_)\w+", re.sub(r"(?m)^ *(summary|cure|alert):.*$", "", RULES))
    )
    assert used
    for name in used:
        assert re.sub(r"_(total|bucket|sum|count)$", "", name) in NAMES, name


def test_each_rule_says_what_is_wrong_and_what_to_do():
    alerts = RULES.split("- alert: ")[1:]
    assert len(alerts) >= 10
    for alert in alerts:
        assert re.search(r"summary: \".+\"\n +cure: \".+\"", alert), alert


def test_the_key_that_the_scrape_configuration_names_is_one():
    text = (FOLDER / "prometheus.example.yml").read_text()
    ((table, key, value),) = re.findall(r'\[(\w+)\] ([\w.]+) = ("\w+")', text)
    least = 'version = 1\n[gateway]\nid = "gw"\nhttp = "127.0.0.1:0"\n'
    assert parse(f"{least}[{table}]\n{key} = {value}\n").auth.metrics == "open"


@needs_prometheus
def test_promtool_takes_rules_and_configuration(tmp_path: Path):
    for name in ("alerts.yml", "prometheus.example.yml"):
        shutil.copy(FOLDER / name, tmp_path)
    for command in (["rules", "alerts.yml"], ["config", "prometheus.example.yml"]):
        checked = subprocess.run(
            ["promtool", "check", *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


@contextmanager
def _prometheus(folder: Path, target: str) -> Iterator[str]:
    """One that scrapes a gateway as often as it can, and does not wait before it fires."""
    quick = re.sub(r"for: \w+", "for: 0s", RULES)
    (folder / "alerts.yml").write_text(quick)
    settings = (FOLDER / "prometheus.example.yml").read_text().replace("15s", "250ms")
    (folder / "prometheus.yml").write_text(settings.replace("127.0.0.1:8000", target))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait()


def _firing(url: str) -> set[str]:
    try:
        alerts = httpx.get(url + "/api/v1/alerts", timeout=10).json()["data"]["alerts"]
    except httpx.TransportError:
        return set()
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


def _targets(url: str) -> list[str]:
    try:
        answer = httpx.get(url + "/api/v1/targets").raise_for_status()
    except httpx.HTTPError:  # it is not up yet, or not ready
        return []
    return [target["health"] for target in answer.json()["data"]["activeTargets"]]


@needs_prometheus
@pytest.mark.integration
def test_a_real_prometheus_scrapes_a_gateway_and_its_rules_fire_when_it_fails(tmp_path: Path):
    config = config_text(fake_worker("w-1"))
    with (
        running(config, "w-1") as cluster,
        _prometheus(tmp_path, cluster.url().removeprefix("http://")) as url,
    ):
        wait_for(lambda: _targets(url) == ["up"], "the first scrape")
        assert _firing(url) == set()
        for _ in range(3):
            cluster.signal("w-1", signal.SIGKILL)
            cluster.wait_exit("w-1")
            cluster.start("worker", "w-1")
            cluster.wait_ready("w-1")
        wait_for(lambda: _firing(url) == {"StudiofleetWorkerRestarts"}, "the restarts to be told")
        cluster.signal("w-1", signal.SIGKILL)
        cluster.wait_exit("w-1")
        down = {"StudiofleetModelWithoutWorkers", "StudiofleetWorkerNotReady"}
        wait_for(lambda: down <= _firing(url), "the missing worker to be told")
        cluster.signal("gw-1", signal.SIGKILL)
        cluster.wait_exit("gw-1")
        wait_for(lambda: "StudiofleetGatewayDown" in _firing(url), "the missing gateway to be told")
