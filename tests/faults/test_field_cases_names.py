"""FC-43, duplicate short names: a name means one model, in the configuration and at registration."""

from __future__ import annotations

import msgspec
import pytest

from protocol.config import parse
from protocol.config_errors import ConfigError
from protocol.errors import ClusterError
from protocol.values import ModelCard
from tests.gateway.fleet import Fleet, hello

GATEWAY = 'version = 1\n[gateway]\nid = "gw-1"\nhttp = "127.0.0.1:8000"\n'


def workers(*tables: str) -> str:
    return GATEWAY + "".join(
        f'[[workers]]\nid = "w-{number}"\nengine = "batched"\n{table}\n'
        for number, table in enumerate(tables, 1)
    )


def test_fc_43_two_folders_of_one_last_name_are_refused_with_both():
    with pytest.raises(ConfigError) as error:
        parse(workers('model = "x/org1/Foo-4bit"', 'model = "y/org2/Foo-4bit"'))
    assert all(words in str(error.value) for words in ("'Foo-4bit'", "x/org1/Foo-4bit", "y/org2/Foo-4bit"))


def test_fc_43_an_alias_that_is_another_models_name_is_refused():
    with pytest.raises(ConfigError, match="the name 'Bar' stands for two models"):
        parse(workers('model = "x/Foo"\naliases = ["Bar"]', 'model = "y/Bar"'))


def test_fc_43_the_same_folder_twice_is_two_replicas():
    assert len({worker.name for worker in parse(workers('model = "x/Foo"', 'model = "x/Foo"')).workers}) == 1


def test_fc_43_names_that_differ_in_case_only_are_two_models_and_the_refusal_lists_how_they_are_written():
    fleet = Fleet()
    fleet.join("a", model="Foo")
    fleet.join("b", model="foo")
    assert (fleet.catalog.named("Foo"), fleet.catalog.named("foo")) == ("Foo", "foo")
    with pytest.raises(ClusterError, match=r"'FOO' does not exist; served are: .*Foo, foo"):
        fleet.catalog.named("FOO")


def test_fc_43_one_name_for_two_quantizations_is_refused_at_registration_with_both_paths():
    fleet = Fleet()
    for name, bits in (("a", 4), ("b", 8)):
        card = ModelCard(name="m", fingerprint=f"of {bits} bits", model_path=f"/models/m-{bits}bit")
        fleet.receive(name.encode(), msgspec.structs.replace(hello(name), card=card))
    assert fleet.registry.at(b"b") is None
    refusal = fleet.registry.strangers.refusals()["b"]
    assert "/models/m-4bit" in refusal
    assert "/models/m-8bit" in refusal
