"""The commands about the API keys of a home: `clusterctl keys …`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import click

from clusterctl import keyring, output
from clusterctl.options import json_option, places, reported, taught
from protocol.addresses import Home
from protocol.api_keys import PRIORITIES, KeyFile, new_secret, now, read_api_keys
from protocol.config_errors import ConfigError
from protocol.configfile import read_config

_ONCE = "this is the only time that it is shown; gateways of this home take it from now on"


@click.group(epilog=taught("clusterctl keys create alice", "clusterctl keys list"))
def keys() -> None:
    """Make and revoke the API keys that clients of the gateways need.

    Without any, gateways serve this machine only, and everybody on it. With the first, they ask for
    one. Changes count within a second, without a restart.
    """


@keys.command(
    epilog=taught(
        "clusterctl keys create alice",
        "clusterctl keys create batch-jobs --model 'qwen*' --priority batch --max-concurrent 4",
        "clusterctl keys create guest --requests-per-minute 20 --tokens-per-minute 20000 --expires 30d",
        refused="the name is taken, or a value is wrong",
    )
)
@click.argument("name")
@click.option("--model", "models", multiple=True, help="Only this one; * and ? are wild. Can be repeated.")
@click.option("--requests-per-minute", type=click.IntRange(min=1), help="At most.  [default: any]")
@click.option("--tokens-per-minute", type=click.IntRange(min=1), help="Read and written.  [default: any]")
@click.option("--max-concurrent", type=click.IntRange(min=1), help="Answers at once.  [default: any]")
@click.option("--priority", type=click.Choice(PRIORITIES), help="Its class in the queue.  [default: normal]")
@click.option("--expires", help="After 12h, 30d or 4w; or a date.  [default: never]")
@reported
def create(expires: str | None, **given: Any) -> None:
    """Make a key and show it, once."""
    moment = now()
    wanted = {name: value for name, value in given.items() if value not in (None, ())}
    if expires is not None:
        wanted["expires"] = keyring.expiry(expires, moment)
    key, secret = new_secret()
    file = keyring.change_keys(_home(), lambda keys: keyring.with_key(keys, wanted, secret, moment))
    click.echo(key)
    output.say(_ONCE)
    _tell_what_is_unknown(wanted.get("models", ()))
    if len(file.keys) == 1:
        output.say("it is the first: requests without a key are refused now")


@keys.command("list", epilog=taught("clusterctl keys list", "clusterctl keys list --json"))
@json_option
@reported
def list_keys(as_json: bool) -> None:
    """Show the keys, by their names and beginnings."""
    file = read_api_keys(_home())
    document = keyring.key_document(file.keys if file else (), now())
    if as_json:
        output.show_json({"required": file is not None, "keys": document})
    elif file is None:
        click.echo("there are no API keys, and none is asked for; to make one: clusterctl keys create NAME")
    else:
        output.show_keys(document)


@keys.command(
    epilog=taught("clusterctl keys revoke guest", refused="there is no key of that name"),
)
@click.argument("name")
@reported
def revoke(name: str) -> None:
    """Have a key refused from now on. What it asked already is answered."""
    home = _home()
    file = keyring.change_keys(home, lambda keys: keyring.without_key(keys, name))
    click.echo(f"{name} is revoked")
    _tell_what_is_left(home, file)


@keys.command(
    epilog=taught(
        "clusterctl keys rotate alice",
        "clusterctl keys rotate alice --overlap 2h",
        refused="there is no key of that name",
    )
)
@click.argument("name")
@click.option("--overlap", help="The old one is taken for so long, too: 30s, 10m, 2h, 7d.  [default: no]")
@reported
def rotate(name: str, overlap: str | None) -> None:
    """Replace a key by a new one with the same limits, and show that, once."""
    moment = now()
    until = moment + (keyring.span(overlap) if overlap else timedelta())
    key, secret = new_secret()
    keyring.change_keys(_home(), lambda keys: keyring.with_new_secret(keys, name, secret, until, moment))
    click.echo(key)
    output.say(_ONCE)


def _tell_what_is_unknown(models: Iterable[str]) -> None:
    with contextlib.suppress(ConfigError):  # keys can be made before there is a configuration
        unknown = keyring.unknown_models(models, read_config(places(None)[1]))
        if unknown:
            output.say(f"note: no configured model has the name {', '.join(unknown)}; see: clusterctl list")


def _tell_what_is_left(home: Home, file: KeyFile) -> None:
    if not file.keys:
        output.say(f"no key is left, so every request is refused; to ask for none again: rm {home.api_keys}")


def _home() -> Home:
    return Home.from_environment(os.environ)
