import subprocess
import sys
from pathlib import Path

import pytest

from protocol.config import WorkerConfig
from protocol.config_errors import ConfigError
from worker.engine.fake import FakeEngine
from worker.engine.load import make_engine

MODELS = Path("/nowhere")


def config(engine, **options):
    return WorkerConfig(id="w", model="some/model", engine=engine, engine_options=options)


def test_a_fake_engine_is_made_with_the_slots_of_its_worker():
    made = make_engine(WorkerConfig(id="w", model="m", engine="fake", max_model_len=9), MODELS)
    assert isinstance(made, FakeEngine)
    assert made.model_name == "m"
    assert made.facts().max_model_len == 9


@pytest.mark.parametrize(
    ("engine", "options", "words"),
    [
        ("fake", {"speed": 3}, "unknown field `speed`"),
        ("fake", {"load_s": "long"}, "load_s"),
        ("no_such_module:Engine", {}, "cannot be imported"),
        ("worker.engine.base:NoSuchEngine", {}, "not a class derived from"),
        ("pathlib:Path", {}, "not a class derived from"),
        ("tests.worker.engine.broken_module:Engine", {}, "SystemExit"),
        ("worker.engine.base:BaseEngine", {}, "cannot be made"),
        ("worker.engine.fake:FakeEngine", {"speed": 3}, "cannot be made"),
    ],
)
def test_what_cannot_be_made_is_explained(engine, options, words):
    with pytest.raises(ConfigError, match="worker 'w'") as refused:
        make_engine(config(engine, **options), MODELS)
    assert words in str(refused.value)


def test_a_class_is_made_with_the_model_as_written():
    made = make_engine(config("worker.engine.fake:FakeEngine", max_num_seqs=1), MODELS)
    assert made.model_name == "some/model"


def test_a_fake_worker_never_imports_mlx():
    program = "import sys, worker.engine.load; print(sorted(m for m in sys.modules if m.startswith('mlx')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("engine", ["fake", "worker.engine.fake:FakeEngine"])
@pytest.mark.parametrize("names", [{"tool_parser": "hermse"}, {"reasoning_parser": "a b c"}])
def test_a_syntax_that_is_unknown_is_explained(engine, names):
    with pytest.raises(ConfigError, match=r"worker 'w': .*_parser is"):
        make_engine(WorkerConfig(id="w", model="m", engine=engine, **names), MODELS)


def test_the_syntax_of_a_fake_engine_can_be_switched_off():
    made = make_engine(WorkerConfig(id="w", model="m", engine="fake", tool_parser="none"), MODELS)
    assert isinstance(made, FakeEngine)
    assert (made.facts().syntax.has_tools, made.facts().syntax.has_reasoning) == (False, True)
