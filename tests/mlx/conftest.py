"""The embedded model, made ready once a session, and engines on it."""

import asyncio
import importlib.util
import os
from contextlib import asynccontextmanager

import pytest

from protocol.addresses import models_folder
from tests.mlx.tiny import tiny_folder
from tests.mlx.tiny_vision import vision_folder
from worker.engine import loading
from worker.engine.base import run_blocking_startup_work
from worker.engine.batched import BatchedEngine
from worker.engine.embedded import ensure_embedded


def pytest_collection_modifyitems(items):
    """Everything in this folder needs MLX."""
    missing = importlib.util.find_spec("mlx") is None
    for item in items:
        if item.path.is_relative_to(os.path.dirname(__file__)):
            item.add_marker(pytest.mark.mlx)
            item.add_marker(pytest.mark.timeout(600))
            if missing:
                item.add_marker(pytest.mark.skip(reason="mlx is not installed"))


@pytest.fixture(scope="session")
def models():
    """The shared models folder, with the embedded model in it."""
    folder = models_folder(os.environ)
    ensure_embedded(folder, lambda done, doing: None)
    return folder


class NoTrial:
    """Instead of a child that tries the template, and takes longer to start than all the rest."""

    def __init__(self, *_what):
        pass

    def look(self):
        return True

    def close(self):
        pass


@pytest.fixture(scope="module")
def untried():
    """Templates are taken without a trial."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "TemplateTrial", NoTrial)
        yield


@pytest.fixture(scope="session")
def tiny(models, tmp_path_factory):
    """A model folder that is loaded in a moment, and what it says is no matter."""
    embedded = ensure_embedded(models, lambda done, doing: None)
    return tiny_folder(embedded, tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def seeing(tmp_path_factory):
    """The folder of a model that names the colour of a picture."""
    return vision_folder(tmp_path_factory.mktemp("models") / "seeing")


@pytest.fixture(scope="session")
def tiny_draft(models, tmp_path_factory):
    """One that often says what `tiny` says."""
    embedded = ensure_embedded(models, lambda done, doing: None)
    return tiny_folder(embedded, tmp_path_factory.mktemp("models") / "draft", noise=0.02)


@pytest.fixture(scope="module")
def runner():
    """The event loop of the engine that a module's tests share."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def make_engine(models):
    """Starts engines on the embedded model, and stops them."""

    @asynccontextmanager
    async def make(max_num_seqs=2, max_waiting=0, kind=BatchedEngine, model="embedded", **options):
        places = {"max_num_seqs": max_num_seqs, "max_waiting": max_waiting}
        engine = kind(model, **{"models": models, **places, **options})
        await run_blocking_startup_work(engine.prepare_for_start)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()

    return make
