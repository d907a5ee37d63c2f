"""FC-94: a model folder that is not whole is refused before the worker is ready, in words, with the file.

Each case damages a small model in one way and starts a real worker on it. Exit code 78 means that
the supervisor parks it at once and does not try again.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import pytest

from protocol.states import ExitCode
from tests.faults.small_model import TEMPLATE, make_model
from tests.integration.cluster import PATIENCE_S, Cluster, chat, config_text, running, wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.mlx,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="mlx is not installed"),
]
MLX_S = 120.0
"""MLX takes its time to come up on a busy machine."""


def worker_table(folder: Path, worker_id: str = "w-1", name: str = "small") -> str:
    return (
        f'[[workers]]\nid = "{worker_id}"\nmodel = "{folder}"\nserved_name = "{name}"\nmax_model_len = 128\n'
    )


def refusal(tmp_path: Path, folder: Path) -> str:
    """What a worker says of the folder before it ends with 78. It must never have been ready."""
    cluster = Cluster(tmp_path / "home", config_text(worker_table(folder)))
    try:
        cluster.start("worker", "w-1")
        code = cluster.wait_exit("w-1", MLX_S)
    finally:
        cluster.stop()
    log = cluster.log("w-1")
    assert code == ExitCode.MISCONFIGURED, log
    assert "is ready" not in log
    assert "Traceback" not in log
    (line,) = [line for line in log.splitlines() if "the model cannot be loaded" in line]
    return line


def edit(path: Path, **changes: object) -> None:
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | changes))


def flip(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(old) >= 1
    assert len(old) == len(new)
    path.write_bytes(content.replace(old, new, 1))


def test_fc_94_the_model_of_these_tests_is_whole_and_serves(tmp_path):
    with running(
        config_text(worker_table(make_model(tmp_path / "m", shards=2))), "w-1", patience_s=MLX_S
    ) as cluster:
        answer = ask(cluster)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] >= 1


def ask(cluster: Cluster) -> httpx.Response:
    body = chat("Hello", model="small", max_tokens=4)
    return httpx.post(cluster.url() + "/v1/chat/completions", json=body, timeout=PATIENCE_S)


# --- weights ---------------------------------------------------------------------------------------------


def test_fc_94_a_shard_that_the_index_names_is_missing(tmp_path):
    folder = make_model(tmp_path / "m", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "lacks model-00002-of-00002.safetensors" in refusal(tmp_path, folder)


def test_fc_94_a_weight_file_is_cut_short(tmp_path):
    folder = make_model(tmp_path / "m")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1024])
    assert f"{path} is damaged: it has" in refusal(tmp_path, folder)


def test_fc_94_a_weight_file_is_longer_than_it_should_be(tmp_path):
    folder = make_model(tmp_path / "m")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes() * 2)
    assert f"{path} is damaged: it has" in refusal(tmp_path, folder)


def test_fc_94_bytes_of_a_header_are_flipped_in_a_shape(tmp_path):
    folder = make_model(tmp_path / "m")
    path = folder / "model.safetensors"
    flip(path, b'"shape": [32, 16]', b'"shape": [32, 17]')
    assert f"{path} is damaged" in refusal(tmp_path, folder)


def test_fc_94_bytes_of_a_header_are_flipped_in_a_name(tmp_path):
    folder = make_model(tmp_path / "m")
    flip(folder / "model.safetensors", b"gate_proj", b"gate_prok")
    assert "the weights (model.safetensors) do not fit together" in refusal(tmp_path, folder)


def test_fc_94_bytes_of_a_header_are_flipped_in_a_name_that_an_index_knows(tmp_path):
    folder = make_model(tmp_path / "m", shards=2)
    flip(folder / "model-00001-of-00002.safetensors", b"embed_tokens", b"embed_tokenz")
    line = refusal(tmp_path, folder)
    assert "model-00001-of-00002.safetensors is damaged: it lacks 'model.embed_tokens.weight'" in line


def test_fc_94_the_index_names_a_file_outside_of_the_folder(tmp_path):
    folder = make_model(tmp_path / "m", shards=2)
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00002", "../model-00002"))
    (folder / "model-00002-of-00002.safetensors").rename(tmp_path / "model-00002-of-00002.safetensors")
    line = refusal(tmp_path, folder)
    assert f"{index} names a file outside of the folder" in line


def test_fc_94_an_interrupted_download_left_a_file(tmp_path):
    folder = make_model(tmp_path / "m")
    left = folder / "model-00002.safetensors.incomplete"
    left.write_bytes(b"half")
    assert f"{left} is what an interrupted download left" in refusal(tmp_path, folder)


# --- configuration ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("content", "words"), [("", "it is empty"), ('{"model_type": ', "it is no JSON")])
def test_fc_94_the_configuration_is_damaged(tmp_path, content, words):
    folder = make_model(tmp_path / "m")
    (folder / "config.json").write_text(content)
    assert f"{folder / 'config.json'} is damaged: {words}" in refusal(tmp_path, folder)


def test_fc_94_the_architecture_is_unknown(tmp_path):
    folder = make_model(tmp_path / "m")
    edit(folder / "config.json", model_type="hologram", architectures=["HologramForCausalLM"])
    line = refusal(tmp_path, folder)
    assert f"{folder / 'config.json'}: models of the type 'hologram' are not known to mlx-lm" in line


def test_fc_94_the_configuration_does_not_fit_the_weights(tmp_path):
    folder = make_model(tmp_path / "m")
    edit(folder / "config.json", hidden_size=32)
    assert f"{folder / 'config.json'} and the weights" in refusal(tmp_path, folder)


def test_fc_94_a_model_that_wants_to_run_a_program_of_its_own(tmp_path):
    folder = make_model(tmp_path / "m")
    (folder / "model.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    edit(folder / "config.json", model_file="model.py")
    assert "asks for a program of its own ('model.py'), which is not run" in refusal(tmp_path, folder)
    assert not (tmp_path / "ran").exists()


# --- tokenizer and template ------------------------------------------------------------------------------


def test_fc_94_the_tokenizer_is_missing(tmp_path):
    folder = make_model(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    assert f"{folder / 'tokenizer.json'} is missing" in refusal(tmp_path, folder)


@pytest.mark.parametrize("content", ["", '{"version": "1.0", "model": {"type": "BPE"}}', '{"version": 7'])
def test_fc_94_the_tokenizer_is_damaged(tmp_path, content):
    folder = make_model(tmp_path / "m")
    (folder / "tokenizer.json").write_text(content)
    line = refusal(tmp_path, folder)
    assert "tokenizer" in line
    assert str(folder) in line
    assert "again" in line


def test_fc_94_without_a_template_the_model_serves_and_refuses_conversations(tmp_path):
    folder = make_model(tmp_path / "m", template=None)
    with running(config_text(worker_table(folder)), "w-1", patience_s=MLX_S) as cluster:
        answer = ask(cluster)
        assert answer.status_code == 400, answer.text
        assert "no chat template" in answer.json()["error"]["message"]
        assert "chat_template.jinja" in answer.json()["error"]["message"]
        assert "no chat template is found" in cluster.log("w-1")
        assert cluster.worker("w-1")["state"] == "ready"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('only for robots') }}", "only for robots"),
        ("{% for m in messages %}{{ m['content'] }}", "TemplateSyntaxError"),
        ("{{ messages[5]['content'] }}", "UndefinedError"),
        ("{# nothing #}", "gives an empty prompt"),
    ],
)
def test_fc_94_the_template_fails(tmp_path, template, words):
    folder = make_model(tmp_path / "m", template=template)
    line = refusal(tmp_path, folder)
    assert f"the chat template in {folder / 'chat_template.jinja'}" in line
    assert words in line


def test_fc_94_the_template_never_ends(tmp_path):
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}" + TEMPLATE
    folder = make_model(tmp_path / "m", template=loop)
    line = refusal(tmp_path, folder)
    assert f"the chat template in {folder / 'chat_template.jinja'} did not end within 10 s" in line


# --- the fleet -------------------------------------------------------------------------------------------


def test_fc_94_a_replica_of_another_model_is_refused_and_shown(tmp_path):
    one, other = make_model(tmp_path / "one"), make_model(tmp_path / "other", shards=2)
    folder = tmp_path / "current"  # is exchanged between the two starts
    folder.symlink_to(one)
    config = config_text(worker_table(folder, "w-1") + worker_table(folder, "w-2"))
    with running(config, "w-1", patience_s=MLX_S) as cluster:
        folder.unlink()
        folder.symlink_to(other)
        cluster.start("worker", "w-2")

        def refused() -> str:
            worker = cluster.worker("w-2")
            return str(worker.get("last_error")) if worker.get("detail") == "refused" else ""

        why = wait_for(refused, "w-2 to be refused", MLX_S)
        assert f"worker 'w-2' ({other} on local, fingerprint" in why
        assert f"worker 'w-1' ({one} on local, fingerprint" in why
        wait_for(lambda: why in cluster.log("w-2"), "its own word on it", MLX_S)
        assert {ask(cluster).headers["x-worker-id"] for _ in range(5)} == {"w-1"}


def test_fc_94_the_supervisor_parks_it_at_once_with_the_file_in_the_status(tmp_path):
    folder = make_model(tmp_path / "m")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1024])
    home = Path(tempfile.mkdtemp(prefix="sf-test-")) / "home"
    home.mkdir(mode=0o700)
    (home / "cluster.toml").write_text(config_text(worker_table(folder)))
    environ = {**os.environ, "STUDIOFLEET_HOME": str(home)}

    def clusterctl(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "clusterctl.cli", *arguments]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    try:
        up = clusterctl("up", "--wait")
        status = json.loads(clusterctl("status", "--json").stdout)
    finally:
        clusterctl("down")
        shutil.rmtree(home.parent)
    assert up.returncode == 1
    assert str(path) in up.stderr
    (worker,) = status["workers"]
    assert (worker["state"], worker["last_exit"], worker["restarts"]) == ("parked", 78, 0)
    assert f"{path} is damaged" in worker["last_error"]
