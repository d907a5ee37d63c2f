"""A version that is installed on a node: whole, damaged, and made anew."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl import node_commands, node_side
from clusterctl.node_facts import read_facts
from protocol.config import ClusterConfig
from tests.clusterctl.test_nodes import MAC

CONTENT = "answer = 42\n"


def put_version(final: Path) -> Path:
    """With a package of one file, and a Python that has all that is imported."""
    packages = final / "lib" / "python3.13" / "site-packages"
    info = packages / "thing-1.0.dist-info"
    info.mkdir(parents=True)
    (packages / "thing.py").write_text(CONTENT)
    (info / "RECORD").write_text(
        f"thing.py,sha256=x,{len(CONTENT)}\n../../../bin/thing,sha256=x,999\nthing-1.0.dist-info/RECORD,,\n"
    )
    (final / "bin").mkdir()
    (final / "bin" / "python").symlink_to(sys.executable)
    return packages / "thing.py"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The versions that were made, without wheels and pip."""
    made: list[Path] = []

    def make(fresh: Path, final: Path) -> None:
        put_version(fresh)
        made.append(final)

    monkeypatch.setattr(node_side, "_unpack", lambda packed, folder, digest: None)
    monkeypatch.setattr(node_side, "_make", make)
    monkeypatch.setattr(node_side, "_IMPORTS", "import sys")
    return made


def test_what_is_whole_stays(tmp_path: Path, made: list[Path]):
    for _ in range(2):
        node_side.install(tmp_path, "1.0", "digest", io.BytesIO())
    assert made == [tmp_path / "versions" / "1.0"]


@pytest.mark.parametrize("how", ["missing", "shorter", "without Python"])
def test_what_is_damaged_is_named_and_made_anew(tmp_path: Path, made: list[Path], how: str):
    final = tmp_path / "versions" / "1.0"
    file = put_version(final)
    assert node_side.damage(final) == ""
    if how == "missing":
        file.unlink()
    elif how == "shorter":
        file.write_text("")
    else:
        (final / "bin" / "python").unlink()
    named = str(final / "bin" / "python") if how == "without Python" else f"{file} is not as it was installed"
    assert named in node_side.damage(final)
    node_side.install(tmp_path, "1.0", "digest", io.BytesIO())
    assert made == [final]
    assert node_side.damage(final) == ""
    assert [path.name for path in final.parent.iterdir()] == ["1.0"]
    assert not (final / "damaged").exists()


@pytest.mark.parametrize("whole", [True, False])
def test_the_program_tells_whether_a_version_is_whole(tmp_path: Path, made: list[Path], whole: bool):
    file = put_version(tmp_path / "versions" / "1.0")
    if not whole:
        file.unlink()
    with pytest.raises(SystemExit) as ended:
        node_side.main(str(tmp_path), "1.0", "")
    assert ended.value.code == (0 if whole else f"{file} is not as it was installed")
    assert made == []


class FakeMachine:
    """One on which that version is used."""

    name = "studio-2"
    prefix = Path("/opt/studiofleet")
    config = SimpleNamespace(prefix="/opt/studiofleet")

    def __init__(self, damage: str) -> None:
        self.its_damage, self.done = damage, list[Any]()

    def damage(self, version: str, python: str) -> str:
        return self.its_damage

    def place(self, wheelhouse: Any, python: str) -> None:
        self.done.append(("place", wheelhouse.version))

    def use(self, version: str) -> None:
        self.done.append(("use", version))


@pytest.mark.parametrize("damage", ["", "x.py is not as it was installed"])
def test_node_add_repairs_the_version_that_it_would_install(damage: str, capsys: pytest.CaptureFixture[str]):
    machine: Any = FakeMachine(damage)
    wheels: Any = SimpleNamespace(version="0.1.0-92ac11f2", python="3.13", sent_bytes=7)
    changed = node_commands._install(machine, read_facts(MAC), wheels, ClusterConfig(version=1))
    assert changed == bool(damage)
    assert machine.done == ([("place", wheels.version), ("use", wheels.version)] if damage else [])
    assert (f"{wheels.version} is damaged: {damage}" in capsys.readouterr().err) == bool(damage)
