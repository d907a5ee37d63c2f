"""The shape of the repository: where packages live, how large files are, what nobody may commit."""

import importlib.util
import re
import subprocess
from pathlib import Path
from typing import get_args

import msgspec
import pytest

import protocol.messages
import protocol.values
from protocol.messages import AnyMessage, Message

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "protocol": ROOT / "protocol",
    "gateway": ROOT / "gateway",
    "worker": ROOT / "worker",
    "clusterctl": ROOT / "deploy" / "clusterctl",
}
SOURCES = sorted(path for folder in PACKAGES.values() for path in folder.rglob("*.py"))
LONGEST_FILE = 400
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "tools", "shared", "lib"}
FIRST_RELEASE = {
    "Hello": {"protocol", "worker_id", "incarnation", "node", "pid", "card", "capacity", "state"},
    "Heartbeat": {"state"},
    "Accepted": {"request_id", "attempt", "load"},
    "Rejected": {"request_id", "attempt", "load", "reason"},
    "Started": {"request_id", "attempt"},
    "Deltas": {"deltas"},
    "Finished": {"request_id", "attempt", "finish_reason", "usage", "load"},
    "Failed": {"request_id", "attempt", "code", "message", "load"},
    "Result": {"request_id"},
    "Goodbye": {"reason"},
    "Welcome": {"gateway_id", "protocol"},
    "WhoAreYou": {"gateway_id"},
    "Ping": set(),
    "Generate": {"request_id", "attempt", "model", "sampling", "seed"},
    "Abort": {"request_id"},
    "Embed": {"request_id", "inputs"},
    "Score": {"request_id", "attempt", "queries", "texts"},
    "Tokenize": {"request_id"},
    "Drain": set(),
    "Undrain": set(),
    "LoadModel": set(),
    "Unload": set(),
    "Stats": {"request_id"},
    "ClearCaches": {"request_id"},
}
"""The fields without a default when each message was new; it gets no more of them."""


def tracked_files():
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    names = listing.stdout.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def wire_structs():
    modules = (protocol.messages, protocol.values)
    found = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    return sorted((v for v in found if issubclass(v, msgspec.Struct)), key=lambda v: v.__name__)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_is_imported_from_this_repository(name):
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert Path(spec.origin or "").resolve() == PACKAGES[name] / "__init__.py"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_source_file_is_short_and_no_drawer_and_explains_itself(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST_FILE
    assert path.stem.strip("_") not in DRAWERS
    assert not re.search(r"^\s*from \.", text, re.MULTILINE), "a relative import"
    if path.name != "__init__.py":
        assert text.startswith(('"""', 'r"""')), "no docstring that tells the module's duty"


def test_every_folder_of_tests_and_sources_is_a_package():
    roots = [*PACKAGES.values(), ROOT / "tests"]
    folders = {path.parent for root in roots for path in root.rglob("*.py")}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_every_package_says_that_it_is_typed():
    assert [name for name, folder in PACKAGES.items() if not (folder / "py.typed").exists()] == []


@pytest.mark.parametrize("struct", wire_structs(), ids=lambda struct: struct.__name__)
def test_a_struct_of_the_wire_is_frozen_and_takes_keywords(struct):
    config = struct.__struct_config__
    assert config.frozen
    if not config.array_like:
        with pytest.raises(TypeError):
            struct(None)


@pytest.mark.parametrize("message", get_args(AnyMessage), ids=lambda message: message.__name__)
def test_a_message_has_no_new_field_without_a_default(message):
    assert issubclass(message, Message)
    required = {field.name for field in msgspec.structs.fields(message) if field.required}
    assert required == FIRST_RELEASE[message.__name__]


def test_no_second_lock_file_is_committed():
    assert [
        path.name for path in tracked_files() if path.name in ("uv.lock", "poetry.lock", "Pipfile.lock")
    ] == []


def test_no_file_names_a_folder_of_somebodys_machine():
    home = re.compile(rb"(?<![\w.~-])/(?:(?:home|Users)/[A-Za-z][\w-]*|root)/")
    found = [
        f"{path.relative_to(ROOT)}: {match.group().decode()}"
        for path in tracked_files()
        if (match := home.search(path.read_bytes()))
    ]
    assert found == []


def test_every_script_is_executable_and_described():
    readme = (ROOT / "scripts" / "README.md").read_text()
    for path in tracked_files():
        if path.parent == ROOT / "scripts" and path.name != "README.md":
            assert f"`{path.name}`" in readme, f"scripts/README.md does not tell of {path.name}"
            assert path.suffix == ".py" or path.stat().st_mode & 0o111, f"{path.name} is not executable"
