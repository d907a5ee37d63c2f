import pytest

from clusterctl import edits
from protocol.config import parse
from protocol.config_errors import ConfigError

FILE = """\
# my cluster
version = 1

[gateway]
id = "gw"                # the one
http = "127.0.0.1:8000"

[[workers]]
id = "a"                 # the first
model = "/models/a"
# before the second
[[workers]]
id = "b"
model = "/models/b"

[limits]                 # narrow
max_connections = 7
"""


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_new_configuration_is_valid_and_has_so_many_workers(workers):
    config = parse(edits.new_config("127.0.0.1:0", workers))
    assert [worker.name for worker in config.workers] == ["smollm2-135m"] * workers
    assert config.all_gateways[0].http == "127.0.0.1:0"


def test_a_new_configuration_on_no_address_is_refused():
    with pytest.raises(ConfigError, match="HOST:PORT"):
        edits.new_config("nonsense", 1)


def test_a_worker_is_added_and_every_other_line_stays():
    text, worker = edits.add_worker(FILE, {"id": "c", "model": "/models/c", "max_num_seqs": 2})
    assert parse(text).worker_named("c") == worker
    assert worker.max_num_seqs == 2
    assert [line for line in FILE.splitlines() if line not in text.splitlines()] == []
    assert parse(text).limits.max_connections == 7


def test_a_first_worker_is_added_to_a_file_without_workers():
    bare = edits.new_config("127.0.0.1:0", 0)
    text, worker = edits.add_worker(bare, {"id": "c", "model": "m", "engine": "fake"})
    assert text.startswith(bare)
    assert parse(text).workers == (worker,)


def test_a_worker_is_added_to_an_inline_list():
    bare = 'version = 1\nworkers = []  # none yet\n[gateway]\nid = "g"\nhttp = "127.0.0.1:0"\n'
    text, _worker = edits.add_worker(bare, {"id": "c", "model": "m", "engine": "fake"})
    assert [worker.id for worker in parse(text).workers] == ["c"]
    assert "# none yet" in text


def test_engine_options_are_written_as_an_inline_table():
    text, _worker = edits.add_worker(FILE, {"id": "c", "model": "m", "engine_options": {"load_s": 0.5}})
    assert parse(text).worker_named("c").engine_options == {"load_s": 0.5}
    assert "engine_options = {load_s = 0.5}" in text


def test_the_same_worker_once_more_changes_nothing():
    entry = {"id": "c", "model": "m", "engine": "fake", "aliases": ["x"]}
    text, _worker = edits.add_worker(FILE, entry)
    assert edits.add_worker(text, entry)[0] == text


def test_a_default_written_out_is_the_same_worker():
    text, _worker = edits.add_worker(FILE, {"id": "a", "model": "/models/a", "max_num_seqs": 8})
    assert text == FILE


def test_another_worker_of_the_same_id_is_refused_with_the_differences():
    with pytest.raises(edits.EditError, match=r"max_num_seqs: 8 there, 3 asked"):
        edits.add_worker(FILE, {"id": "a", "model": "/models/a", "max_num_seqs": 3})


def test_the_id_of_a_gateway_is_refused():
    with pytest.raises(ConfigError, match="used twice"):
        edits.add_worker(FILE, {"id": "gw", "model": "m"})


def test_a_value_that_the_configuration_refuses_is_not_added():
    with pytest.raises(ConfigError, match="max_num_seqs"):
        edits.add_worker(FILE, {"id": "c", "model": "m", "max_num_seqs": 0})


def test_a_bad_value_of_a_worker_without_id_is_refused_the_same_way():
    with pytest.raises(ConfigError):
        edits.add_worker(FILE, {"model": "m", "max_num_seqs": 0})


@pytest.mark.parametrize(
    ("model", "worker_id"),
    [
        ("embedded", "smollm2-135m-1"),
        ("/models/Qwen3 4B (MLX)", "qwen3-4b-mlx-1"),
        ("/models/" + "x" * 60, "x" * 26 + "-1"),
        ("/models/日本", "worker-1"),
    ],
)
def test_an_id_is_made_from_the_name_of_the_model(model, worker_id):
    assert edits.add_worker(FILE, {"model": model})[1].id == worker_id


def test_free_ids_count_on():
    text = FILE
    for number in (1, 2, 3):
        text, worker = edits.add_worker(text, {"model": "embedded"})
        assert worker.id == f"smollm2-135m-{number}"


def test_a_worker_is_removed_and_the_comments_stay():
    text = edits.remove_worker(FILE, "b")
    assert [worker.id for worker in parse(text).workers] == ["a"]
    for comment in ("# my cluster", "# the one", "# the first", "# narrow"):
        assert comment in text


def test_the_last_worker_can_be_removed_and_another_added():
    text = edits.remove_worker(edits.remove_worker(FILE, "a"), "b")
    assert parse(text).workers == ()
    assert parse(edits.add_worker(text, {"model": "embedded"})[0]).workers


def test_adding_and_removing_gives_the_old_workers():
    text, worker = edits.add_worker(FILE, {"model": "embedded"})
    assert parse(edits.remove_worker(text, worker.id)) == parse(FILE)


def test_an_unknown_worker_cannot_be_removed():
    with pytest.raises(ConfigError, match="'z'"):
        edits.remove_worker(FILE, "z")


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("load_s=0.5", ("load_s", 0.5)),
        ("on=true", ("on", True)),
        ("name=abc", ("name", "abc")),
        ('name="7"', ("name", "7")),
        ("list=[1, 2]", ("list", [1, 2])),
        ("empty=", ("empty", "")),
        ("sum=a=b", ("sum", "a=b")),
    ],
)
def test_the_value_of_an_engine_option_is_toml_or_text(text, pair):
    assert edits.option(text) == pair


@pytest.mark.parametrize("text", ["load_s", "=1"])
def test_an_engine_option_without_key_or_value_is_refused(text):
    with pytest.raises(edits.EditError, match="KEY=VALUE"):
        edits.option(text)
