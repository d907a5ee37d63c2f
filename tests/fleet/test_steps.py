"""Each step of adding a worker on another machine fails once: what is said, and that nothing is left.

The steps: alone, ssh, facts, power, runtime, MLX, model, memory, gateway, key, reservation, rendering,
installation, start, live, loading, token, configuration. The same command is given again each time, passes
the step at which it failed, and meets the next fault further on; at last it meets none.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from clusterctl import journal
from protocol.wire_keys import allowed_path, read_allowed
from tests.faults.small_model import make_model
from tests.fleet.installed import installed, prefix_of
from tests.fleet.operators import fleet_of
from tests.fleet.sometimes import CANNOT_ANSWER, CANNOT_LOAD, ENGINE
from tests.fleet.sshd import COMMAND, CUT, Machine, needs_sshd
from tests.integration.cluster import wait_for
from tests.integration.operating import Operator

pytestmark = [pytest.mark.integration, needs_sshd, pytest.mark.timeout(600)]

FAKE = ("--model", "fake-model", "--engine", "fake")
SOMETIMES = ("--model", "MODELS/sometimes", "--engine", ENGINE, "--served-name", "sometimes")
REAL = ("--model", "org/small", "--residency", "on_demand")
WAIT = ("--wait", "--timeout", "5")
UNDONE = "what was begun on studio-2 is undone: once that is put right, do the same again"
IDS = {FAKE: "far-1", REAL: "far-2", SOMETIMES: "far-3"}
CONFLICT = '\n[[workers]]\nid = "ID"\nmodel = "another"\nengine = "fake"\n'


@dataclass(frozen=True)
class Fault:
    """What befalls a step once."""

    step: str
    code: int
    says: tuple[str, ...]
    words: str = ""
    """Of the command there for which something else is done."""
    instead: str = ""
    file: str = ""
    """It is nonsense as long as the fault lasts."""
    worker: tuple[str, ...] = FAKE
    more: tuple[str, ...] = ()


def altered(sed: str) -> str:
    """What the command says, otherwise."""
    return f"{COMMAND} | sed '{sed}'"


def fails(why: str, said: str = "", code: int = 1) -> str:
    return f"echo '{said}'; echo '{why}' >&2; exit {code}"


BUSY = f"echo; sleep 0.2; {fails('busy jo')}"
"""Its reason comes later than its output."""
LOST = f"{COMMAND}; {CUT}"
"""It is done, and nobody is told."""
WRONG_KEY = (
    f"""/bin/sh -c "$(printf %s "$SSH_ORIGINAL_COMMAND" | sed "s|pin gw-1 .*|pin gw-1 {"0" * 40}|")" """
)
FAULTS = (
    Fault("1 alone", 1, ("studio-2 is being changed by jo", "try again"), "flock", BUSY),
    Fault("2 ssh", 6, ("the connection ended", "To try: ssh -p"), "readlink", CUT),
    Fault("3 facts", 1, ("does not answer as a machine does", "no account"), " -s -- ", "echo no account"),
    Fault(
        "3 facts, full",
        3,
        ("the disk of studio-2 is full", "make room there"),
        " -s -- ",
        altered("s/^free_kb=.*/free_kb=1000/"),
    ),
    Fault(
        "5 runtime",
        3,
        ("is damaged on studio-2: no module", "to put it right: clusterctl node add"),
        "worker.server",
        fails("no module"),
    ),
    Fault(
        "6 mlx",
        3,
        ("MLX computes nothing on studio-2: No Metal device", "clusterctl node run studio-2 doctor"),
        "worker.server",
        fails("No Metal device", "whole"),
        worker=REAL,
    ),
    Fault(
        "7 model",
        3,
        ("org/small/model.safetensors", "clusterctl model push org/small studio-2"),
        file="MODELS/org/small/model.safetensors",
        worker=REAL,
    ),
    Fault(
        "8 memory",
        3,
        ("does not fit into the memory of studio-2", "--force-memory goes on", "studio-2: 1 MB"),
        " fit ",
        fails("", "studio-2: 1 MB", 3),
        worker=REAL,
    ),
    Fault(
        "9 gateway",
        3,
        ("does not reach tcp://127.0.0.1", "ECONNREFUSED", "start the gateway there"),
        "create_connection",
        fails("ECONNREFUSED"),
    ),
    Fault(
        "10 key",
        4,
        ("worker-key show failed: no space left", UNDONE),
        "worker-key show",
        fails("no space left"),
    ),
    Fault("10 key, made", 4, ("the connection ended", UNDONE), "worker-key show", LOST),
    Fault("11 reservation", 3, ("workers.allowed, line 1", "correct or remove it"), file="ALLOWED"),
    Fault("12 rendering", 4, ("its file failed: no space left", UNDONE), "cat >", fails("no space left")),
    Fault("13 installation", 4, ("the connection ended", UNDONE), "cat >", LOST),
    Fault(
        "14 start", 4, ("clusterctl up failed: no answer", UNDONE), "clusterctl.cli up", fails("no answer")
    ),
    Fault("14 start, done", 4, ("the connection ended", UNDONE), "clusterctl.cli up", LOST),
    Fault(
        "15 live",
        4,
        ("after 5 s", "its log is on studio-2", UNDONE),
        "pin gw-1",
        WRONG_KEY,
        worker=SOMETIMES,
        more=WAIT,
    ),
    Fault(
        "16 loading",
        4,
        ("does not come up on studio-2", "the disk is on fire", UNDONE),
        file=f"MODELS/sometimes/{CANNOT_LOAD}",
        worker=SOMETIMES,
        more=("--wait",),
    ),
    Fault(
        "17 token",
        4,
        ("is ready, but gives no answer", "the disk is on fire", UNDONE),
        file=f"MODELS/sometimes/{CANNOT_ANSWER}",
        worker=SOMETIMES,
        more=("--wait",),
    ),
    Fault(
        "18 configuration",
        4,
        ("there is a worker", "it differs: model: 'another' there", UNDONE),
        "clusterctl.cli up",
        f"{COMMAND}; cat CONFLICT >>CONFIG",
    ),
)


class Scene:
    """An operator and a machine, which has a worker already."""

    def __init__(self, operator: Operator, studio: Machine) -> None:
        self.operator = operator
        self.studio = studio
        self.prefix = prefix_of(studio)
        self.conflict = studio.folder / "conflict"
        self.places = {
            "MODELS": self.prefix / "models",
            "ALLOWED": allowed_path(operator.home),
            "CONFLICT": self.conflict,
            "CONFIG": operator.home.config,
        }

    def placed(self, text: str) -> str:
        for name, path in self.places.items():
            text = text.replace(name, str(path))
        return text

    @contextmanager
    def befallen(self, fault: Fault, worker_id: str) -> Iterator[None]:
        self.conflict.write_text(CONFLICT.replace("ID", worker_id))
        if fault.words:
            self.studio.befall(fault.words, self.placed(fault.instead))
        file = Path(self.placed(fault.file))
        good = file.read_bytes() if fault.file and file.exists() else None
        if fault.file:
            file.write_text("nonsense")
        yield
        assert self.studio.heal() == bool(fault.words)
        if good is not None:
            file.write_bytes(good)
        elif fault.file:
            file.unlink()
        config = self.operator.home.config
        config.write_text(config.read_text().replace(self.conflict.read_text(), ""))

    def nothing_is_left(self, worker_id: str, before: str) -> None:
        """As if nobody had asked for it."""
        assert self.operator.home.config.read_text() == before
        assert worker_id not in read_allowed(self.operator.home).keys
        assert journal.interrupted(self.operator.home) == []
        assert f'"{worker_id}"' not in (self.prefix / "etc" / "cluster.toml").read_text()
        assert not list(self.prefix.glob(f"etc/keys/wire/{worker_id}.*"))
        wait_for(lambda: not runs(worker_id), f"{worker_id} to have ended")


def runs(worker_id: str) -> bool:
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if "--id" in words and words[words.index("--id") + 1] == worker_id:
            return True
    return False


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with (
        tempfile.TemporaryDirectory(prefix="fleet-") as name,
        installed("studio-2", Path(name) / "2") as studio,
    ):
        models = prefix_of(studio) / "models"
        make_model(models / "org" / "small")
        (models / "sometimes").mkdir()
        with fleet_of(studio) as operator:
            operator.run("add-worker", *FAKE, "--host", "studio-2", "--id", "first", "--wait", limit_s=300)
            yield Scene(operator, studio)


def given(scene: Scene, worker: tuple[str, ...], more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The command for a worker, whose id is told by its engine."""
    words = [*map(scene.placed, worker), "--host", "studio-2", "--id", IDS[worker], *more]
    return ("add-worker", *words)


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.step for fault in FAULTS])
def test_a_step_that_fails_leaves_nothing(scene: Scene, fault: Fault):
    if fault.worker == REAL and importlib.util.find_spec("mlx") is None:
        pytest.skip("mlx is not installed")
    operator, worker_id = scene.operator, IDS[fault.worker]
    before, first = operator.home.config.read_text(), operator.worker("first")
    with scene.befallen(fault, worker_id):
        said = operator.run(*given(scene, fault.worker, fault.more), code=fault.code, limit_s=300)
    for words in fault.says:
        assert words in said
    scene.nothing_is_left(worker_id, before)
    assert operator.worker("first")["pid"] == first["pid"]


@pytest.mark.parametrize("worker", [FAKE, REAL, SOMETIMES], ids=["fake", "real", "sometimes"])
def test_the_next_time_it_works(scene: Scene, worker: tuple[str, ...]):
    if worker == REAL and importlib.util.find_spec("mlx") is None:
        pytest.skip("mlx is not installed")
    operator = scene.operator
    said = operator.run(*given(scene, worker, ("--wait",) if worker != REAL else ()), limit_s=300)
    assert f"{IDS[worker]} is added" in said
    assert ("it is serving on studio-2" in said) == (worker != REAL)
    assert IDS[worker] in operator.home.config.read_text()
    assert "unchanged" in operator.run(*given(scene, worker))


def test_4_power_that_would_not_last_is_a_warning(scene: Scene):
    scene.studio.befall(" -s -- ", altered(r"s/^end=/power=sleep 10\nend=/"))
    said = scene.operator.run("add-worker", *FAKE, "--host", "studio-2", "--id", "far-4", limit_s=300)
    assert "warning   it goes to sleep after 10 minutes without use; there: sudo pmset -a sleep 0" in said
    assert "far-4 is added" in said
