from __future__ import annotations

import pytest

from protocol.config import parse
from protocol.config_errors import ConfigError

LEAST = """
version = 1
[gateway]
id = "gw-1"
http = "127.0.0.1:8000"
"""
WORKER = """
[[workers]]
id = "smol-1"
model = "embedded"
"""


def test_the_least_that_is_useful():
    config = parse(LEAST + WORKER)
    worker = config.worker_named("smol-1")
    assert (worker.name, worker.engine, worker.slots, worker.waiting_room) == (
        "smollm2-135m",
        "batched",
        8,
        1,
    )
    assert config.gateway_named("gw-1").listen == ("ipc",)
    assert config.heartbeat.interval_s == 0.5


def test_the_serial_engine_serves_one_at_a_time_and_nobody_waits():
    worker = parse(LEAST + WORKER + 'engine = "serial"').workers[0]
    assert (worker.slots, worker.waiting_room) == (1, 0)
    assert parse(LEAST + WORKER + 'engine = "serial"\nmax_waiting = 2').workers[0].waiting_room == 2


def test_a_name_means_one_adapter():
    second = WORKER.replace("smol-1", "smol-2") + 'adapter = "/lora"\n'
    with pytest.raises(
        ConfigError, match=r"with the adapter '/lora' \(worker 'smol-2', served as 'smollm2-135m'\)"
    ):
        parse(LEAST + WORKER + second)
    assert parse(LEAST + WORKER + second + 'served_name = "adapted"\n').workers[1].adapter == "/lora"


def test_several_gateways():
    config = parse(
        'version = 1\n[[gateways]]\nid = "a"\nhttp = "127.0.0.1:1"\n[[gateways]]\nid = "b"\nhttp = "[::1]:2"'
    )
    assert [g.id for g in config.all_gateways] == ["a", "b"]


@pytest.mark.parametrize(
    ("model", "name"),
    [("embedded", "smollm2-135m"), ("/models/Qwen3-8B/", "Qwen3-8B"), ("mlx-community/X-4bit", "X-4bit")],
)
def test_the_served_name_defaults_to_the_last_part(model: str, name: str):
    assert parse(LEAST + WORKER.replace("embedded", model)).workers[0].name == name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version = 1\n[", "not valid TOML"),
        (
            LEAST + WORKER + "prefix_cache_mb = 0\nprefix_cache_disk_mb = 5",
            "no effect without prefix_cache_mb",
        ),
        ("version = 2" + LEAST[12:], r"\$\.version"),
        ("version = 1", "there is no gateway"),
        (LEAST + "htpp = 1", "unknown field `htpp` - at `\\$.gateway`"),
        (LEAST + WORKER + "max_num_seqs = 0", r"\$\.workers\[0\]\.max_num_seqs"),
        (LEAST + WORKER + 'engine = "serial"\nmax_num_seqs = 2', "one request at a time, not 2"),
        (
            LEAST + WORKER + 'engine = "quick"',
            "is unknown; write one of batched, serial, vision, embeddings, fake, or package",
        ),
        (LEAST + WORKER + 'residency = "sometimes"', "Invalid enum value 'sometimes'"),
        (LEAST + WORKER + 'engine = "fake"\nadapter = "x"', "'fake' takes no adapter"),
        (LEAST + WORKER + "idle_timeout_s = 5.0", "did you mean `idle_timeout`"),
        (LEAST + WORKER + WORKER, "'smol-1' is used twice"),
        (LEAST + WORKER.replace("smol-1", "gw-1"), "'gw-1' is used twice"),
        (LEAST + WORKER.replace("smol-1", "../x"), r"\$\.workers\[0\]\.id"),
        (LEAST + WORKER.replace("smol-1", "supervisor"), "reserved"),
        (LEAST.replace("127.0.0.1:8000", "8000"), "write HOST:PORT"),
        (LEAST + "listen = []", "listen is empty"),
        (LEAST + 'tls_cert = "gateway.pem"', "tls_key is missing"),
        (LEAST + 'tls_key = "gateway.key"', "tls_cert is missing"),
        (LEAST + 'listen = ["tcp://127.0.0.1"]', "is no address"),
        ('supervisor = "systemd"' + LEAST, "clusterctl boot install"),
        (LEAST + "[admin]\nx = 1", r"`\[admin\]` is not available in this version"),
        (LEAST + "[media]\nallow_private = ['10.0.0.1/8']", r"media.allow_private: .* host bits set; write"),
        (LEAST + "[media]\ndeny_addresses = ['ten']", r"media.deny_addresses: .*; write an address"),
        *(
            (LEAST + f"[media]\nallow_hosts = ['{host}']", r"media.allow_hosts: .* is no host; write")
            for host in ("https://a.org", "A.org", "*.", "a.org/x", "", "*", "a.*.org")
        ),
        (LEAST + "[media]\nmax_bytes = 100_000_000", r"<= 67108864.*\$\.media\.max_bytes"),
        (LEAST + "[[nodes]]\nname = 'local'\nhost = 'x'", "the name 'local' is this machine"),
        (LEAST + 2 * "[[nodes]]\nname = 'a'\nhost = 'x'\n", "the name 'a' is used twice"),
        (LEAST + "[[nodes]]\nname = 'a'\nhost = '-oProxyCommand=x'", r"\$\.nodes\[0\]\.host"),
        (LEAST + "[[nodes]]\nname = 'a'\nhost = 'x'\nprefix = 'here'", r"\$\.nodes\[0\]\.prefix"),
        (
            LEAST + WORKER + 'node = "a"',
            "node 'a' is unknown; write 'local', or one of .* clusterctl node add",
        ),
        (LEAST + "[[models]]\nname = 'm'\nalias = 'a'", r"alias"),
        (LEAST + "[limits]\nstorage = 'memcached://x'", r"no address of a storage; write redis://"),
        (LEAST + "[limits]\nstorage = 'redis://'", r"no address of a storage"),
        (LEAST + "[limits]\nstorage = 'redis://:pw@x'", r"storage_password_file"),
        (LEAST + "[traces]\nendpoint = '127.0.0.1:4318'", r"no address of a collector; write http://"),
        (LEAST + "[traces]\nendpoint = 'http://'", r"no address of a collector"),
        (LEAST + "[traces]\nendpoint = 'https://me:pw@x/v1/traces'", r"a password stands in the address"),
        (LEAST + "[traces]\nratio = 2", r"\$\.traces\.ratio"),
        (LEAST + "[telemetry]\nx = 1", "unknown field `telemetry`"),
    ],
)
def test_faults_are_named_with_their_place(text: str, words: str):
    with pytest.raises(ConfigError, match=words):
        parse(text)


def test_an_open_address_is_taken_when_told_so_in_words():
    text = LEAST.replace("127.0.0.1", "0.0.0.0") + "open_without_keys = true\n"
    assert parse(text).gateway_named("gw-1").open_without_keys


def test_workers_over_tcp_come_with_keys_unless_told_otherwise_in_words():
    text = LEAST + 'listen = ["ipc", "tcp://10.0.0.5:5555"]\n'
    assert not parse(text).gateway_named("gw-1").insecure_tcp
    assert parse(text + "insecure_tcp = true\n").gateway_named("gw-1").insecure_tcp


def test_the_fake_engine_is_refused_on_an_open_gateway():
    text = LEAST.replace("127.0.0.1", "0.0.0.0") + "open_without_keys = true\n"
    fake = WORKER + 'engine = "fake"\n'
    with pytest.raises(ConfigError, match="allow_fake"):
        parse(text + fake)
    assert parse(text + "allow_fake = true\n" + fake).workers[0].engine == "fake"


def test_ids_that_do_not_exist_are_answered_with_those_that_do():
    config = parse(LEAST + WORKER)
    with pytest.raises(ConfigError, match="configured: smol-1"):
        config.worker_named("x")
    with pytest.raises(ConfigError, match="configured: gw-1"):
        config.gateway_named("x")


@pytest.mark.parametrize(
    "line",
    [
        'served_name = "two\\nlines"',
        'served_name = ""',
        'served_name = "\\u009b31m"',
        'aliases = ["a\\r"]',
        'aliases = ["a\\u0085"]',
        'model = "/models/tab\\there"',
    ],
)
def test_names_of_models_are_text_on_one_line(line: str):
    given = 'id = "w-1"\n' + ("" if "model =" in line else 'model = "m"\n') + line
    with pytest.raises(ConfigError):
        parse(f'version = 1\n[gateway]\nid = "g"\nhttp = "127.0.0.1:0"\n[[workers]]\n{given}\n')


@pytest.mark.parametrize("text", [f"version = {'9' * 5000}", "x = " + "[" * 5000])
def test_toml_that_breaks_its_reader_is_refused_in_words(text: str):
    with pytest.raises(ConfigError, match="not valid TOML"):
        parse(text)


def test_a_typing_mistake_is_answered_with_the_worker_and_the_nearest_key():
    with pytest.raises(ConfigError) as caught:
        parse(LEAST + WORKER + "max_num_seq = 4")
    assert "did you mean `max_num_seqs`?; that is worker 'smol-1'" in str(caught.value)


def test_the_rule_for_ids_is_told():
    with pytest.raises(
        ConfigError, match=r"begins with a letter or a digit; at `\$.workers\[0\].id`; that is worker '_x'"
    ):
        parse(LEAST + WORKER.replace("smol-1", "_x"))


def test_a_byte_order_mark_does_no_harm():
    assert parse("\ufeff" + LEAST).version == 1


@pytest.mark.parametrize(
    "second",
    [
        'model = "other"\nserved_name = "smollm2-135m"',
        'model = "other"\naliases = ["smollm2-135m"]',
        'model = "other"\naliases = ["default"]',
    ],
)
def test_a_name_stands_for_one_model(second: str):
    first = WORKER + 'aliases = ["default"]\n'
    with pytest.raises(ConfigError, match=r"stands for two models: 'embedded' .* and 'other'"):
        parse(LEAST + first + f'[[workers]]\nid = "b"\n{second}\n')


def test_replicas_share_their_names():
    assert len(parse(LEAST + WORKER + WORKER.replace("smol-1", "smol-2")).workers) == 2


def test_models_get_further_names():
    found = parse(LEAST + "[[models]]\nname = 'm'\naliases = ['a']\npatterns = ['claude-*']")
    assert (found.models[0].aliases, found.models[0].patterns) == (("a",), ("claude-*",))
    twice = "[[models]]\nname = 'm'\naliases = ['a']\n[[models]]\nname = 'n'\naliases = ['a']"
    with pytest.raises(ConfigError, match="'n': the alias 'a' means 'm' already"):
        parse(LEAST + twice)
