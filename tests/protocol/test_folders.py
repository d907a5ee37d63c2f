from pathlib import Path

import pytest

from protocol.addresses import AddressError, Home
from protocol.folders import leave_socket_folder, private_folder, socket_folder


def test_a_new_folder_is_private(tmp_path):
    folder = private_folder(tmp_path / "home" / "run")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o077 == 0


def test_a_private_folder_is_taken_as_it_is(tmp_path):
    folder = private_folder(tmp_path / "run")
    assert private_folder(folder) == folder


def test_a_folder_open_to_others_is_refused_with_the_cure(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(AddressError, match="chmod 700"):
        private_folder(folder)


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(AddressError, match="no folder"):
        private_folder(tmp_path / "run")


def test_a_symlink_in_a_shared_place_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AddressError, match="symbolic link"):
        private_folder(tmp_path / "run", follow=False)


def test_a_folder_of_sockets_beside_the_home_is_left_when_nobody_uses_it(tmp_path):
    home = Home(tmp_path / ("long" * 30))
    folder = socket_folder(home)
    assert folder.parent == Path("/tmp")
    (folder / "gw.sock").touch()
    leave_socket_folder(home)
    assert folder.exists()
    (folder / "gw.sock").unlink()
    leave_socket_folder(home)
    assert not folder.exists()
    leave_socket_folder(home)  # harmless once more
