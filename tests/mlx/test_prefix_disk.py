"""Beginnings on disk: bounds, damage, strangers, several workers on one folder, a disk that fails."""

import hashlib
import os
import subprocess
import sys
import time

import pytest

from worker.engine.blas import prepare_blas
from worker.engine.prefix_files import PrefixOptions, name_of
from worker.engine.prefix_index import chained

pytest.importorskip("mlx.core", reason="mlx is not installed")
prepare_blas()

import mlx.core as mx  # noqa: E402 (after OpenBLAS)
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache  # noqa: E402

from worker.engine.prefix_cache import open_prefix_cache  # noqa: E402
from worker.engine.prefix_disk import PrefixDisk  # noqa: E402
from worker.engine.prefix_state import Piece, evaluate  # noqa: E402

TOKENS = tuple(range(64))
PLENTY = 1 << 30
PATIENCE_S = 60.0


def piece(seed=0, tokens=64):
    mx.random.seed(seed)
    arrays = [mx.random.normal((2, 1, 2, tokens, 8)) for _ in range(2)]
    made = Piece([KVCache.from_state((*arrays, tokens))], (0, 0))
    evaluate([made])
    return made


def key_of(seed):
    return chained(b"", (seed, *TOKENS[1:]))


def put(disk, *seeds):
    for seed in seeds:
        disk.offer(key_of(seed), 64, piece(seed))


def got(disk, seed):
    entry = disk.find(b"", (seed, *TOKENS[1:]), 0)
    return None if entry is None else disk.read(entry)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "prefix-cache" / "model"


def written(folder, *seeds):
    """A folder that another worker has filled."""
    disk = PrefixDisk(folder, PLENTY)
    put(disk, *seeds)
    disk.close(PATIENCE_S)
    return sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def test_what_was_written_is_read_the_same(folder):
    written(folder, 1, 2)
    disk = PrefixDisk(folder, PLENTY)
    for seed in (1, 2):
        found = got(disk, seed)
        assert bool(mx.array_equal(found.caches[0].keys, piece(seed).caches[0].keys))
        assert bool(mx.array_equal(found.caches[0].values, piece(seed).caches[0].values))
        assert (found.layout, found.caches[0].offset) == ((0, 0), 64)
    assert got(disk, 3) is None
    assert disk.stats()["prefix_cache_disk_entries"] == 2
    disk.close(PATIENCE_S)


def test_states_of_other_kinds_are_read_the_same(folder):
    running = ArraysCache(2)
    running[0] = mx.ones((1, 3))
    window = RotatingKVCache(8)
    window.update_and_fetch(mx.ones((1, 1, 20, 4)), mx.ones((1, 1, 20, 4)))
    made = Piece([running, window])
    evaluate([made])
    disk = PrefixDisk(folder, PLENTY)
    disk.offer(key_of(0), 64, made)
    disk.close(PATIENCE_S)
    found = got(PrefixDisk(folder, PLENTY), 0)
    assert bool(mx.array_equal(found.caches[0][0], running[0]))
    assert found.caches[0][1] is None
    assert (found.caches[1].offset, found.caches[1].max_size, found.layout) == (20, 8, ())


def test_the_folder_is_its_owners_only(folder):
    written(folder, 1)
    assert folder.stat().st_mode & 0o077 == 0


def test_another_worker_sees_what_was_written_after_it_began(folder):
    mine, other = PrefixDisk(folder, PLENTY), PrefixDisk(folder, PLENTY)
    assert got(mine, 1) is None
    put(other, 1)
    other.close(PATIENCE_S)
    assert got(mine, 1) is not None
    put(mine, 1)
    mine.close(PATIENCE_S)
    assert len(list(folder.iterdir())) == 1


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def replace(path):
    path.write_bytes(b"not a tensor in sight")


def replace_with_checksum(path):
    """Garbage under a name that fits it."""
    replace(path)
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()[:32]
    path.rename(path.with_name(name_of(key_of(1), 64, checksum)))


def of_another_key(path):
    path.rename(path.with_name(path.name.replace(key_of(1).hex(), key_of(2).hex())))


@pytest.mark.parametrize("damage", [truncate, flip, replace, replace_with_checksum])
def test_a_damaged_entry_is_ignored_and_removed_with_one_line(folder, damage, caplog):
    (path,) = written(folder, 1)
    damage(path)
    disk = PrefixDisk(folder, PLENTY)
    assert got(disk, 1) is None
    assert got(disk, 1) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "is of no use and is removed" in caplog.text
    assert list(folder.iterdir()) == []
    assert disk.stats()["prefix_cache_disk_entries"] == disk.stats()["prefix_cache_disk_bytes"] == 0
    put(disk, 1)
    disk.close(PATIENCE_S)
    assert len(list(folder.iterdir())) == 1


def test_an_entry_of_another_prompt_is_removed(folder, caplog):
    (path,) = written(folder, 1)
    of_another_key(path)
    assert got(PrefixDisk(folder, PLENTY), 2) is None
    assert list(folder.iterdir()) == []
    assert "another model" in caplog.text


def test_an_entry_of_another_model_is_removed(folder, caplog):
    (path,) = written(folder.with_name("other"), 1)
    folder.mkdir()
    path.rename(folder / path.name)
    assert got(PrefixDisk(folder, PLENTY), 1) is None
    assert list(folder.iterdir()) == []
    assert "another model" in caplog.text


def test_strangers_are_removed_but_what_is_being_written_stays(folder, caplog):
    (path,) = written(folder, 1)
    old, new = folder / ".partial-1.safetensors", folder / ".partial-2.safetensors"
    for stranger in (old, new, folder / "notes.txt"):
        stranger.touch()
    os.utime(old, (1, 1))
    PrefixDisk(folder, PLENTY).close(PATIENCE_S)
    assert sorted(folder.iterdir()) == sorted([path, new])
    assert len(caplog.records) == 2


def test_folders_of_models_that_are_used_no_more_are_removed(folder):
    written(folder.with_name("old"), 1)
    written(folder.with_name("young"), 1)
    os.utime(folder.with_name("old"), (1, 1))
    PrefixDisk(folder, PLENTY).close(PATIENCE_S)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["model", "young"]


def test_it_stays_within_its_bytes_and_what_was_used_last_stays(folder):
    size = written(folder, 0)[0].stat().st_size
    disk = PrefixDisk(folder, 3 * size + size // 2)
    put(disk, 1, 2)
    disk._writer._thread.submit(lambda: None).result(PATIENCE_S)
    assert got(disk, 0) is not None
    disk.use([key_of(0)])
    put(disk, 3, 4)
    disk.close(PATIENCE_S)
    stats = disk.stats()
    assert (stats["prefix_cache_disk_entries"], stats["prefix_cache_disk_evictions"]) == (3, 2)
    assert stats["prefix_cache_disk_bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    held = [seed for seed in range(5) if got(PrefixDisk(folder, PLENTY), seed) is not None]
    assert held == [0, 3, 4]


def test_of_a_chain_the_end_goes_first(folder):
    size = written(folder, 0)[0].stat().st_size
    disk = PrefixDisk(folder, 3 * size + size // 2)
    put(disk, 1, 2)
    disk._writer._thread.submit(lambda: None).result(PATIENCE_S)
    assert got(disk, 0) is not None
    disk.use([key_of(0), key_of(1), key_of(2)])
    put(disk, 3)
    disk.close(PATIENCE_S)
    assert [seed for seed in range(4) if got(PrefixDisk(folder, PLENTY), seed) is not None] == [0, 1, 3]


def test_what_is_larger_than_all_is_not_written(folder):
    disk = PrefixDisk(folder, 1000)
    put(disk, 1)
    disk.close(PATIENCE_S)
    assert list(folder.iterdir()) == []


def test_clear_also_stops_what_waits_to_be_written(folder):
    disk = PrefixDisk(folder, PLENTY)
    put(disk, *range(30))
    disk.clear()
    assert (disk.stats()["prefix_cache_disk_entries"], disk.stats()["prefix_cache_disk_bytes"]) == (0, 0)
    assert got(disk, 0) is None
    disk.close(PATIENCE_S)
    assert list(folder.iterdir()) == []


def test_a_file_that_another_worker_removed_is_just_not_there(folder, caplog):
    (path,) = written(folder, 1)
    disk = PrefixDisk(folder, PLENTY)
    entry = disk.find(b"", (1, *TOKENS[1:]), 0)
    assert entry is not None
    path.unlink()
    assert disk.read(entry) is None
    assert caplog.records == []


def test_a_disk_that_fails_is_told_once_and_serving_goes_on(folder, caplog):
    disk = PrefixDisk(folder, PLENTY)
    folder.rmdir()
    put(disk, *range(5))
    disk._writer._thread.submit(lambda: None).result(PATIENCE_S)
    put(disk, 7)
    assert got(disk, 7) is None
    disk.close(PATIENCE_S)
    assert len(caplog.records) == 1
    assert "prefix_cache_disk_mb" in caplog.text


def test_a_folder_that_cannot_be_made_is_told_and_memory_serves(tmp_path, caplog):
    (tmp_path / "prefix-cache").write_text("a file")
    options = PrefixOptions(1 << 20, 1 << 20, tmp_path / "prefix-cache")
    cache = open_prefix_cache([KVCache()], "1", options)
    assert "prefix_cache_disk_mb" in caplog.text
    assert "prefix_cache_disk_entries" not in cache.stats()
    assert cache.warm([1, 2, 3])
    cache.close()


WORKER = """
import logging, sys
from pathlib import Path
from worker.engine.blas import prepare_blas
prepare_blas()
from tests.mlx.test_prefix_disk import *
logging.basicConfig(level="WARNING")
disk = PrefixDisk(Path(sys.argv[1]), int(sys.argv[2]))
hits = 0
for turn in range(60):
    seed = (turn * 7 + int(sys.argv[3])) % 10
    found = got(disk, seed)
    if found is None:
        put(disk, seed)
    else:
        hits += 1
        disk.use([key_of(seed)])
        assert bool(mx.array_equal(found.caches[0].keys, piece(seed).caches[0].keys))
    if turn == 30 and sys.argv[3] == "1":
        disk.clear()
disk.close(60)
print(hits)
"""


def test_workers_share_a_folder(folder):
    """Three processes read, write, evict and clear in one folder with room for half of it."""
    size = written(folder, 0)[0].stat().st_size
    limit = 5 * size
    command = [sys.executable, "-P", "-c", WORKER, str(folder), str(limit)]
    workers = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for number in range(3)
    ]
    said = [worker.communicate(timeout=10 * PATIENCE_S) for worker in workers]
    assert [err for _out, err in said] == [""] * 3
    assert all(int(out) > 0 for out, _err in said)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= limit + 2 * size


def test_a_worker_killed_while_writing_leaves_nothing_half(folder):
    command = [
        sys.executable,
        "-P",
        "-c",
        WORKER.replace("range(60)", "range(100000)"),
        str(folder),
        str(PLENTY),
        "0",
    ]
    worker = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 10 * PATIENCE_S
    while len(list(folder.glob("[!.]*.safetensors"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    worker.kill()
    worker.wait()
    disk = PrefixDisk(folder, PLENTY)
    assert sum(got(disk, seed) is not None for seed in range(10)) >= 3
    disk.close(PATIENCE_S)
