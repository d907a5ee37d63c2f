import contextlib
import os

import pytest

from protocol.locks import LockHeldError, folder_locked, is_locked, locked, remove_if_free


def test_a_lock_exists_only_while_it_is_held_and_tells_by_whom(tmp_path):
    path = tmp_path / "a.lock"
    with locked(path):
        assert is_locked(path)
        assert path.read_text() == f"{os.getpid()}\n"
        assert path.stat().st_mode & 0o077 == 0
    assert not path.exists()
    assert not is_locked(path)


def test_a_lock_has_one_holder_and_the_second_is_told_who_has_it(tmp_path):
    path = tmp_path / "a.lock"
    with locked(path):
        with pytest.raises(LockHeldError, match=str(os.getpid())), locked(path, patience_s=0.0):
            pass
        assert is_locked(path)
    with locked(path, patience_s=0.0):
        pass


def test_the_lock_is_free_after_a_failure(tmp_path):
    path = tmp_path / "a.lock"
    with pytest.raises(RuntimeError), locked(path):
        raise RuntimeError
    assert not path.exists()


def test_the_file_of_a_killed_holder_can_be_locked(tmp_path):
    path = tmp_path / "a.lock"
    path.write_text("99999999")
    assert not is_locked(path)
    with locked(path, patience_s=0.0):
        assert path.read_text() == f"{os.getpid()}\n"


def test_who_waits_is_called_before_each_try_and_has_the_lock_when_it_is_free(tmp_path):
    path = tmp_path / "a.lock"
    first = contextlib.ExitStack()
    first.enter_context(locked(path))
    with locked(path, patience_s=60, waiting=first.close):
        assert is_locked(path)


def test_who_waits_may_give_up(tmp_path):
    def give_up():
        raise InterruptedError

    path = tmp_path / "a.lock"
    with locked(path), pytest.raises(InterruptedError), locked(path, 60, give_up):
        pass


def test_the_file_of_a_killed_holder_is_swept_and_that_of_a_living_one_is_not(tmp_path):
    held, left = tmp_path / "held.lock", tmp_path / "left.lock"
    left.write_text("123")
    with locked(held):
        remove_if_free(held)
        remove_if_free(left)
        assert held.exists()
    assert not left.exists()


def test_the_lock_of_a_folder_leaves_no_file(tmp_path):
    with folder_locked(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
