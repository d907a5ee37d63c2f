import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.launching import (
    HUGE_PAGES,
    child_environment,
    command_of,
    settled_environment,
    specs_of,
    whole_digest,
)
from clusterctl.supervision import Kind
from protocol.addresses import Home
from protocol.config import parse

GATEWAY = '[gateway]\nid = "g"\nhttp = "127.0.0.1:0"\n'


def config(*workers, tables=""):
    return parse("version = 1\n" + GATEWAY + "".join(workers) + tables)


def worker(worker_id, **keys):
    keys = {"id": worker_id, "model": "m", **keys}
    return "[[workers]]\n" + "".join(f"{key} = {value!r}\n" for key, value in keys.items())


def spec(of, process_id):
    return next(spec for spec in specs_of(of) if spec.id == process_id)


def test_gateways_come_first_and_each_has_its_drain_time():
    specs = specs_of(config(worker("a", drain_timeout_s=5), tables="[limits]\ndrain_timeout_s = 7\n"))
    assert [(s.id, s.kind, s.drain_s) for s in specs] == [
        ("g", Kind.GATEWAY, 7.0),
        ("a", Kind.WORKER, 5.0),
    ]


def test_further_names_change_nothing_for_those_that_run():
    one = config(worker("a"))
    two = config(worker("a", aliases=["x"]), tables='[[models]]\nname = "m"\naliases = ["y"]\n')
    assert [spec(one, each).digest for each in "ag"] == [spec(two, each).digest for each in "ag"]


def test_another_worker_changes_nothing_for_those_that_run():
    one, two = config(worker("a")), config(worker("a"), worker("b"))
    assert spec(one, "a") == spec(two, "a")
    assert spec(one, "g") == spec(two, "g")


@pytest.mark.parametrize(
    "changed", [config(worker("a", max_num_seqs=2)), config(worker("a"), tables='[log]\nlevel = "debug"\n')]
)
def test_a_change_of_what_a_process_reads_changes_its_digest(changed):
    assert spec(config(worker("a")), "a").digest != spec(changed, "a").digest


def test_the_command_names_the_program_the_file_and_the_id():
    command = command_of(spec(config(worker("a")), "a"), Path("/etc/c.toml"))
    assert command == [sys.executable, "-P", "-m", "worker", "--config", "/etc/c.toml", "--id", "a"]


def test_the_environment_means_the_same_in_another_folder():
    environ = {"PYTHONPATH": "lib:/abs", "STUDIOFLEET_MODELS": "models", "LANG": "C"}
    settled = settled_environment(environ, Path("/here"), Home(Path("/home")))
    assert settled["PYTHONPATH"] == "/here/lib:/abs"
    assert settled["STUDIOFLEET_HOME"] == "/home"
    assert Path(settled["STUDIOFLEET_MODELS"]).is_absolute()
    assert settled["LANG"] == "C"


@pytest.mark.parametrize(
    ("engines", "cores", "threads"),
    [(["batched"], 8, "8"), (["batched", "batched", "fake"], 8, "4"), (["batched"] * 3, 2, "1")],
)
def test_the_cores_are_shared_among_the_workers_that_compute(engines, cores, threads):
    of = config(*(worker(f"w{i}", engine=engine) for i, engine in enumerate(engines)))
    assert child_environment(spec(of, "w0"), of, {}, cores, "linux")["OPENBLAS_NUM_THREADS"] == threads


def test_the_operators_own_setting_wins():
    of = config(worker("a"))
    environ = {"OPENBLAS_NUM_THREADS": "3", "GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}
    assert child_environment(spec(of, "a"), of, environ, 8, "linux") == environ


@pytest.mark.parametrize("engine", ["batched", "serial", "embeddings"])
def test_on_linux_models_lie_in_huge_pages(engine):
    of = config(worker("a", engine=engine))
    assert child_environment(spec(of, "a"), of, {}, 8, "linux")["GLIBC_TUNABLES"] == HUGE_PAGES
    assert "GLIBC_TUNABLES" not in child_environment(spec(of, "a"), of, {}, 8, "darwin")


def test_what_has_no_model_lies_in_small_pages():
    of = config(worker("a", engine="fake"))
    assert child_environment(spec(of, "a"), of, {"A": "1"}, 8, "linux") == {"A": "1"}


def test_the_gateway_gets_neither_threads_nor_pages():
    of = config(worker("a"))
    assert child_environment(spec(of, "g"), of, {"A": "1"}, 8, "linux") == {"A": "1"}


def test_glibc_takes_the_setting():
    """A name that it does not know is passed over without a word."""
    loader = next(Path("/").glob("lib*/ld-linux-*.so.*"), None)
    if sys.platform != "linux" or loader is None:
        pytest.skip("no glibc")
    told = subprocess.run(
        [loader, "--list-tunables"], env={"GLIBC_TUNABLES": HUGE_PAGES}, capture_output=True, check=False
    )
    assert b"glibc.malloc.hugetlb: 0x1 " in told.stdout


def test_what_only_gateways_read_changes_nothing_for_workers():
    one = config(worker("a"))
    two = config(worker("a"), tables="[queue]\nmax_requests = 3\n")
    assert spec(one, "a").digest == spec(two, "a").digest
    assert spec(one, "g").digest != spec(two, "g").digest


def test_the_whole_digest_sees_further_names_but_no_addresses_of_machines():
    one = config(worker("a"))
    assert whole_digest(one) != whole_digest(config(worker("a", aliases=["x"])))
    assert whole_digest(one) == whole_digest(
        config(worker("a"), tables='[[nodes]]\nname = "s"\nhost = "h"\n')
    )
