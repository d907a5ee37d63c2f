from gateway.watch import Watched


def test_a_file_that_comes_changes_and_goes_is_noticed_once(tmp_path):
    path = tmp_path / "file"
    watched = Watched(path, tmp_path)
    assert not watched.has_changed()
    path.write_text("a")
    assert watched.has_changed()
    assert not watched.has_changed()
    other = tmp_path / "other"
    other.write_text("a")
    other.rename(path)
    assert watched.has_changed()
    path.chmod(0o600)
    assert watched.has_changed()
    path.unlink()
    assert watched.has_changed()
    assert not watched.has_changed()
