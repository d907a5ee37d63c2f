"""A fast BLAS beneath MLX."""

import pytest

from worker.engine.blas import load_openblas, share_cores


@pytest.mark.parametrize(
    ("cores", "workers", "threads"), [(8, 2, "4"), (2, 1, "2"), (2, 5, "1"), (4, 0, "4")]
)
def test_workers_share_the_cores(cores, workers, threads):
    environ: dict[str, str] = {}
    share_cores(environ, cores, workers)
    assert environ == {"OPENBLAS_NUM_THREADS": threads}


def test_a_number_that_is_set_stays():
    environ = {"OPENBLAS_NUM_THREADS": "3"}
    share_cores(environ, 8, 1)
    assert environ == {"OPENBLAS_NUM_THREADS": "3"}


def test_a_library_that_is_missing_or_damaged_is_told(tmp_path):
    damaged = tmp_path / "libopenblas.so.0"
    damaged.write_bytes(b"no library")
    assert not load_openblas(None)
    assert not load_openblas(str(damaged))
