"""Real weights that come and go: within the budget, the least recently used first, and the memory is back."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from protocol.addresses import models_folder
from protocol.models import embedded_folder
from tests.faults.small_model import make_model
from tests.integration.cluster import Cluster, config_text, running, wait_for
from tests.integration.residents import MODELS, Watch, ask, ask_all, idle_fleet, loads, loads_without_use
from worker.engine.embedded import ensure_embedded

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="mlx is not installed"),
]

PATIENCE_S = 240.0
CACHE_MB = 16


@pytest.fixture
def folders() -> Iterator[Path]:
    """Three model folders with the embedded model's files."""
    models = models_folder(os.environ)
    ensure_embedded(models, lambda done, doing: None)
    folder = Path(tempfile.mkdtemp(prefix="sf-models-"))
    for name in MODELS:
        (folder / name).mkdir()
        for file in embedded_folder(models).iterdir():
            (folder / name / file.name).symlink_to(file)
    yield folder
    shutil.rmtree(folder)


def weights_mb(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) >> 20


def table(folder: Path, **settings: object) -> str:
    lines = [f"{key} = {value}" for key, value in settings.items()]
    return "\n".join(
        [
            "[[workers]]",
            f'id = "{folder.name}"',
            f'model = "{folder}"',
            'residency = "on_demand"',
            f"prefix_cache_mb = {CACHE_MB}",
            *lines,
            "",
        ]
    )


def rss_mb(cluster: Cluster, name: str) -> int:
    return psutil.Process(cluster.processes[name].pid).memory_info().rss >> 20


def test_its_memory_returns_to_the_system_each_time(folders: Path):
    size = weights_mb(folders / "a")
    with idle_fleet(config_text(table(folders / "a", idle_timeout=1.0)), "a") as cluster:
        idle = [rss_mb(cluster, "a")]
        assert cluster.worker("a")["memory_mb"] == size + CACHE_MB
        for _ in range(3):
            assert "Paris" in ask(cluster, "a", "What is the capital of France?").text
            assert rss_mb(cluster, "a") > size
            wait_for(lambda: cluster.worker("a")["state"] == "idle", "its idle time to be over", PATIENCE_S)
            idle.append(rss_mb(cluster, "a"))
    assert idle[0] < 100, "a process that has loaded nothing yet"
    # What stays is MLX and its libraries, and none of the weights.
    assert max(idle[1:]) < idle[0] + size / 3, idle
    assert idle[3] < idle[1] + 50, idle


def test_sixty_mixed_requests_for_three_real_models_under_a_budget_for_two(folders: Path):
    size = weights_mb(folders / "a") + CACHE_MB
    workers = "".join(table(folders / name, max_num_seqs=4, idle_timeout=20.0) for name in MODELS)
    budget = f"[residency]\nmemory_budget_mb = {2 * size + 10}\n"
    budget += '[queue]\nmax_requests = 60\ntimeout_s = 400.0\n[log]\nlevel = "debug"\n'
    with idle_fleet(config_text(workers, extra=budget), *MODELS) as cluster:
        before = {name: rss_mb(cluster, name) for name in MODELS}
        with Watch(cluster) as watch:
            rng = random.Random(5)
            requests = [(rng.choice(MODELS), rng.uniform(0, 20)) for _ in range(60)]
            assert asyncio.run(ask_all([cluster.url()], requests)) == {"ok": 60}
        counts = loads(cluster)
        assert loads_without_use(cluster) == 0
        assert watch.most_mb == 2 * size
        assert watch.most_loaded == 2
        assert all(counts.values())
        assert sum(counts.values()) <= 20, counts
        cluster.wait_idle()
        states = dict.fromkeys(MODELS, "idle")
        wait_for(
            lambda: {w["id"]: w["state"] for w in cluster.state()["workers"]} == states,
            "all to be idle",
            PATIENCE_S,
        )
        after = {name: rss_mb(cluster, name) for name in MODELS}
        assert all(after[name] < before[name] + size / 3 for name in MODELS), (before, after)
        assert not list(cluster.home.run.glob("*.memory"))


def test_damaged_files_are_found_before_anybody_asks(tmp_path: Path):
    folder = make_model(tmp_path / "a")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with running(config_text(table(folder))) as cluster:
        cluster.start("worker", "a")
        assert cluster.wait_exit("a", PATIENCE_S) == 78
        assert f"{weights} is damaged" in cluster.log("a")
        assert "is loading" not in cluster.log("a")
