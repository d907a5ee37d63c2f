"""An adapter that cannot be used is refused before its worker is ready, and is not tried again."""

import importlib.util
import json

import pytest

from protocol.states import ExitCode
from tests.faults.small_model import make_model
from tests.integration.cluster import Cluster, config_text

pytestmark = [
    pytest.mark.integration,
    pytest.mark.mlx,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="mlx is not installed"),
]


def test_a_damaged_adapter_is_named_before_the_worker_is_ready(tmp_path):
    model, adapter = make_model(tmp_path / "m"), tmp_path / "lora"
    adapter.mkdir()
    parameters = {"rank": 8, "scale": 20.0, "dropout": 0.0}
    (adapter / "adapter_config.json").write_text(json.dumps({"num_layers": 1, "lora_parameters": parameters}))
    (adapter / "adapters.safetensors").write_bytes(b"\0" * 20)
    table = f'[[workers]]\nid = "w-1"\nmodel = "{model}"\nadapter = "{adapter}"\n'
    cluster = Cluster(tmp_path / "home", config_text(table))
    try:
        cluster.start("worker", "w-1")
        code = cluster.wait_exit("w-1", 120.0)
    finally:
        cluster.stop()
    log = cluster.log("w-1")
    assert code == ExitCode.MISCONFIGURED, log
    assert f"{adapter / 'adapters.safetensors'} is damaged" in log
    assert "is ready" not in log
    assert "Traceback" not in log
