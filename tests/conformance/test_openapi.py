"""What `/openapi.json` says against what is answered, by Schemathesis: thousands of bodies, good and bad."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.integration.cluster import Cluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("schemathesis") is None, reason="it is missing; run: scripts/install --dev"
    ),
]

SEED = int(os.environ.get("STUDIOFLEET_SCHEMA_SEED", "0")) or random.randrange(1, 2**31)
SECONDS = int(os.environ.get("STUDIOFLEET_SCHEMA_SECONDS", "20"))
"""Of each of the two phases."""
MODELS = {"embeddings": "vectors", "embed": "vectors", "rerank": "ranks", "score": "ranks"}
"""Those that can do what a path is for."""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


@pytest.mark.parametrize("phase", ["coverage", "fuzzing"])
def test_every_answer_is_one_that_is_described(cluster: Cluster, tmp_path: Path, phase: str):
    described = httpx.get(cluster.url() + "/openapi.json").json()
    for path, operations in described["paths"].items():
        for operation in operations.values():
            body = operation.get("requestBody", {"content": {}})["content"].get("application/json")
            if body is not None:  # few would guess the name of a model
                body["schema"]["properties"]["model"] = {
                    "const": MODELS.get(path.rpartition("/")[2], "fake-model")
                }
                body["schema"].setdefault("required", []).append("model")
    paths = list(described["paths"].items())
    random.Random(SEED).shuffle(paths)  # each run gets to others before its time is over
    described["paths"] = dict(paths)
    (tmp_path / "openapi.json").write_text(json.dumps(described))
    command = [sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", cluster.url()]
    command += ["--checks", ",".join(CHECKS), "--phases", phase, "--seed", str(SEED)]
    command += ["--max-time", str(SECONDS), "--max-examples", "1000", "--continue-on-failure"]
    command += ["--exclude-path", "/health/ready"]  # one model of this cluster never is
    command += ["--no-color", "--warnings", "off", "--generation-database", "none"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    told = f"seed {SEED} (STUDIOFLEET_SCHEMA_SEED)\n{run.stdout}{run.stderr}"
    print(told)
    assert run.returncode == 0, told
    assert "passed" in run.stdout
