from clusterctl.sweeping import sweep_process
from protocol.addresses import Home


def test_files_of_a_process_that_ended_are_removed_and_what_cannot_be_is_left(tmp_path):
    home = Home(tmp_path)
    home.run.mkdir()
    for name in ("w.pid", "w.url", "w.lock"):
        (home.run / name).touch()
    (home.run / "other.pid").touch()
    sweep_process(home, "w")
    assert [path.name for path in home.run.iterdir()] == ["other.pid"]
    (home.run / "w.pid").mkdir()
    (home.run / "w.lock").touch()
    sweep_process(home, "w")
    assert sorted(path.name for path in home.run.iterdir()) == ["other.pid", "w.pid"]
