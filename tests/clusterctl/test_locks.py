import pytest

from clusterctl.locks import AlreadyLockedError, folder_locked, is_locked, locked, remove_if_free


def test_a_lock_exists_only_while_it_is_held(tmp_path):
    path = tmp_path / "a.lock"
    with locked(path):
        assert is_locked(path)
    assert not path.exists()
    assert not is_locked(path)


def test_a_lock_has_one_holder(tmp_path):
    path = tmp_path / "a.lock"
    with locked(path), pytest.raises(AlreadyLockedError), locked(path, patience_s=0.0):
        pass


def test_the_file_of_a_killed_holder_can_be_locked(tmp_path):
    path = tmp_path / "a.lock"
    path.write_text("123")
    assert not is_locked(path)
    with locked(path, patience_s=0.0):
        assert is_locked(path)


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
