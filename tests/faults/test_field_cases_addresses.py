"""FC-96: sockets have paths that fit, whatever the home; what lies at their places is looked at first."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from protocol.addresses import MAX_SOCKET_PATH, Home
from protocol.config import parse
from protocol.config_errors import ConfigError
from protocol.states import ExitCode
from tests.integration.cluster import PATIENCE_S, Cluster, chat, config_text, fake_worker, script, wait_for

WORKER = fake_worker("w-1", model="organisation/" + "m" * 120, served_name="fake-model")


@pytest.mark.parametrize(
    "home",
    ["/h", "/" + "h" * 90, "/" + "deep/" * 60, "/Users/someone with a name/.studiofleet", "/" + "ü" * 60],
)
@pytest.mark.parametrize("process_id", ["a", "w" * 32, "supervisor"])
def test_fc_96_every_socket_path_fits(home: str, process_id: str):
    path = Home(Path(home)).socket(process_id)
    assert len(os.fsencode(path)) <= MAX_SOCKET_PATH


def test_fc_96_ids_are_not_shortened_so_that_they_cannot_collide():
    home = Home(Path("/" + "h" * 200))
    first, second = (home.socket("w" * 31 + letter) for letter in "ab")
    assert first != second


def test_fc_96_an_id_that_would_not_fit_is_refused_with_the_limit():
    with pytest.raises(ConfigError, match=r"workers\[0\].id"):
        parse(config_text(fake_worker("w" * 33)))


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="sf-test-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def long_home(folder: Path) -> Iterator[Home]:
    """A home whose sockets do not fit into it; their folder is removed at the end."""
    home = Home(folder / ("höme with spaces " + "x" * 120))
    assert home.sockets != home.run
    yield home
    if home.sockets.is_symlink():
        home.sockets.unlink()
    shutil.rmtree(home.sockets, ignore_errors=True)


def answers(cluster: Cluster) -> bool:
    body = chat(script(tokens=["hi"]))
    answer = httpx.post(cluster.url() + "/v1/chat/completions", json=body, timeout=PATIENCE_S)
    return answer.status_code == 200


@pytest.mark.integration
def test_fc_96_a_cluster_serves_from_a_long_home_with_spaces_and_umlauts(long_home: Home):
    cluster = Cluster(long_home.path, config_text(WORKER))
    try:
        cluster.start("gateway", "gw-1")
        cluster.start("worker", "w-1")
        cluster.wait_ready("w-1")
        assert answers(cluster)
        assert long_home.sockets.stat().st_mode & 0o777 == 0o700
    finally:
        cluster.stop()


@pytest.mark.integration
def test_fc_96_a_socket_that_a_killed_gateway_left_is_replaced(folder: Path):
    cluster = Cluster(folder / "home", config_text(WORKER))
    try:
        cluster.start("gateway", "gw-1")
        cluster.start("worker", "w-1")
        cluster.wait_ready("w-1")
        cluster.signal("gw-1", signal.SIGKILL)
        cluster.wait_exit("gw-1")
        assert cluster.home.socket("gw-1").exists()
        cluster.home.http_url("gw-1").unlink()
        cluster.start("gateway", "gw-1")
        cluster.wait_ready("w-1")
        assert answers(cluster)
    finally:
        cluster.stop()


@pytest.mark.integration
def test_fc_96_a_socket_at_which_somebody_listens_is_not_taken(folder: Path):
    cluster = Cluster(folder / "home", config_text(WORKER))
    try:
        first = cluster.start("gateway", "gw-1")
        cluster.start("worker", "w-1")
        cluster.wait_ready("w-1")
        second = cluster.start("gateway", "gw-1")
        assert second.wait(PATIENCE_S) == ExitCode.MISCONFIGURED
        cluster.processes["gw-1"] = first
        assert f"another process serves {cluster.home.socket('gw-1')}; stop it" in cluster.log("gw-1")
        assert answers(cluster)
    finally:
        cluster.stop()


def in_the_way_of_another_user(path: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, 65534, 65534)


def open_to_others(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def a_link(path: Path) -> None:
    path.symlink_to(tempfile.gettempdir())


@pytest.mark.integration
@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        pytest.param(
            in_the_way_of_another_user,
            "belongs to another user; remove it",
            marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away"),
        ),
        (open_to_others, "is open to other users; run: chmod 700"),
        (a_link, "is a symbolic link; remove it"),
    ],
)
@pytest.mark.parametrize("kind", ["gateway", "worker"])
def test_fc_96_a_folder_that_somebody_else_may_enter_is_refused(long_home: Home, kind, prepare, words):
    prepare(long_home.sockets)
    cluster = Cluster(long_home.path, config_text(WORKER))
    process_id = "gw-1" if kind == "gateway" else "w-1"
    try:
        cluster.start(kind, process_id)
        assert cluster.wait_exit(process_id) == ExitCode.MISCONFIGURED
    finally:
        cluster.stop()
    assert words in cluster.log(process_id)
    assert str(long_home.sockets) in cluster.log(process_id)


@pytest.mark.integration
def test_fc_96_two_homes_with_long_paths_do_not_meet(folder: Path):
    homes = [Home(folder / (letter + "x" * 120)) for letter in "ab"]
    clusters = [Cluster(home.path, config_text(WORKER)) for home in homes]
    try:
        for cluster in clusters:
            cluster.start("gateway", "gw-1")
        clusters[0].start("worker", "w-1")
        clusters[0].wait_ready("w-1")
        wait_for(clusters[1].state, "the other gateway")
        assert clusters[1].worker("w-1")["detail"] == "not connected"
    finally:
        for cluster in clusters:
            cluster.stop()
        for home in homes:
            shutil.rmtree(home.sockets, ignore_errors=True)
