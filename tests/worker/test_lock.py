import os

import pytest

from worker.lock import LockHeldError, held_lock


def test_the_file_holds_our_pid_and_is_gone_afterwards(tmp_path):
    path = tmp_path / "w.lock"
    with held_lock(path):
        assert path.read_text() == f"{os.getpid()}\n"
        assert path.stat().st_mode & 0o077 == 0
    assert not path.exists()


def test_a_second_holder_is_refused_and_told_who_has_it(tmp_path):
    path = tmp_path / "w.lock"
    with held_lock(path):
        with pytest.raises(LockHeldError, match=str(os.getpid())), held_lock(path):
            pass
        assert path.exists()
    with held_lock(path):
        pass


def test_a_file_left_by_a_killed_process_is_no_obstacle(tmp_path):
    path = tmp_path / "w.lock"
    path.write_text("99999999\n")
    with held_lock(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_the_lock_is_free_after_a_failure(tmp_path):
    path = tmp_path / "w.lock"
    with pytest.raises(RuntimeError), held_lock(path):
        raise RuntimeError
    assert not path.exists()
