"""The example and the schema say what the structs say."""

import re
from pathlib import Path

import msgspec
import pytest

from clusterctl.schema import not_built, schema_text
from protocol.config import (
    AnthropicConfig,
    AuthConfig,
    ClusterConfig,
    GatewayConfig,
    HeartbeatConfig,
    LimitsConfig,
    LogConfig,
    MediaConfig,
    ModelConfig,
    NodeConfig,
    QueueConfig,
    ResidencyConfig,
    RoutingConfig,
    TakeoverConfig,
    TracesConfig,
    WorkerConfig,
    parse,
)

DEPLOY = Path(__file__).parents[2] / "deploy"
EXAMPLE = (DEPLOY / "cluster.example.toml").read_text()
TABLES: dict[str, type[msgspec.Struct]] = {
    "gateway": GatewayConfig,
    "workers": WorkerConfig,
    "queue": QueueConfig,
    "routing": RoutingConfig,
    "takeover": TakeoverConfig,
    "residency": ResidencyConfig,
    "heartbeat": HeartbeatConfig,
    "limits": LimitsConfig,
    "auth": AuthConfig,
    "media": MediaConfig,
    "log": LogConfig,
    "traces": TracesConfig,
    "models": ModelConfig,
    "nodes": NodeConfig,
    "anthropic": AnthropicConfig,
}


def written(table):
    """The keys beneath the table's header, those behind a "#" too."""
    after = re.split(rf"^\[+{table}\]+.*$", EXAMPLE, flags=re.MULTILINE)[1]
    return re.findall(r"^(?:# )?(\w+) = ", re.split(r"^\[", after, flags=re.MULTILINE)[0], re.MULTILINE)


@pytest.mark.parametrize("table", TABLES)
def test_every_key_is_in_the_example_and_no_other(table):
    struct = TABLES[table]
    assert sorted(written(table)) == sorted(set(struct.__struct_fields__) - not_built(struct))


def test_every_value_of_the_example_is_the_default():
    example = parse(EXAMPLE)
    required = {
        "gateway": {"id": "gw-1", "http": "127.0.0.1:8000"},
        "workers": {"id": "smol-1", "model": "embedded"},
        "models": {"name": "smollm2-135m"},
        "nodes": {"name": "studio-2", "host": "studio-2.local"},
    }
    for table, struct in TABLES.items():
        value = getattr(example, table)
        value = value[0] if isinstance(value, tuple) else value
        assert value == msgspec.convert(required.get(table, {}), struct), table


def test_every_table_is_in_the_example():
    keys = set(ClusterConfig.__struct_fields__) - not_built(ClusterConfig)
    assert keys - {"version", "supervisor", "gateways"} == set(TABLES)


def test_with_the_commented_keys_the_example_is_valid_too():
    assert parse(re.sub(r"^# (\w+ = )", r"\1", EXAMPLE, flags=re.MULTILINE)).workers[0].max_waiting == 1


def test_every_piece_of_a_configuration_in_the_pages_is_valid():
    least = EXAMPLE[: EXAMPLE.index("[[workers]]")]
    pages = sorted((DEPLOY.parent / "docs").glob("*.md"))
    pieces = [p for page in pages for p in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.S | re.M)]
    assert pieces
    for piece in pieces:
        is_entry = re.search(r"^\[", piece, re.MULTILINE) is None
        model = "" if re.search(r"^model = ", piece, re.MULTILINE) else 'model = "embedded"\n'
        entry = f'[[workers]]\nid = "w"\n{model}' if is_entry else ""
        parse(piece if "version = " in piece else least + entry + piece)


def test_the_schema_is_current():
    assert (DEPLOY / "cluster.schema.json").read_text() == schema_text()


def test_the_schema_lists_only_what_is_built():
    definitions = msgspec.json.decode(schema_text())["$defs"]
    assert set(definitions["ClusterConfig"]["properties"]) == {"version", "supervisor", "gateways", *TABLES}
    assert set(definitions["WorkerConfig"]["properties"]) == set(written("workers"))
