import pytest

from clusterctl.configfile import change_config, create_config
from protocol.config_errors import ConfigError
from protocol.configfile import read_config

TEXT = 'version = 1\n[gateway]\nid = "g"\nhttp = "127.0.0.1:0"\n'


def test_a_new_file_is_its_owners_alone(tmp_path):
    path = tmp_path / "cluster.toml"
    assert create_config(path, TEXT)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_config(path).all_gateways[0].id == "g"


def test_a_file_that_is_there_is_not_overwritten(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text("mine")
    assert not create_config(path, TEXT)
    assert path.read_text() == "mine"


def test_a_change_keeps_the_mode_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(TEXT)
    path.chmod(0o640)
    assert change_config(path, lambda text: text + "# more\n")
    assert path.read_text() == TEXT + "# more\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_no_change_writes_nothing(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(TEXT)
    before = path.stat().st_ino
    assert not change_config(path, lambda text: text)
    assert path.stat().st_ino == before


def test_a_refused_change_leaves_the_file(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(TEXT)

    def refuse(text):
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        change_config(path, refuse)
    assert path.read_text() == TEXT
    assert list(tmp_path.iterdir()) == [path]


def test_a_symbolic_link_stays_one(tmp_path):
    real, link = tmp_path / "real.toml", tmp_path / "cluster.toml"
    real.write_text(TEXT)
    link.symlink_to(real)
    change_config(link, lambda text: text + "# more\n")
    assert link.is_symlink()
    assert real.read_text().endswith("# more\n")


def test_a_missing_file_is_named_with_the_cure(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml.*clusterctl init"):
        read_config(tmp_path / "none.toml")


def test_a_fault_is_named_with_the_file(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(TEXT + "colour = 1\n")
    with pytest.raises(ConfigError, match=r"cluster\.toml.*colour"):
        read_config(path)
