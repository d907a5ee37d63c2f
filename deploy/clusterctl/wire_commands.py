"""The commands about the keys with which workers of other machines come: `clusterctl worker-key`."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from clusterctl import output, wire_keys
from clusterctl.commands import complete_ids
from clusterctl.operations import RefusedError
from clusterctl.options import config_option, json_option, places, reported, taught
from protocol.config_errors import ConfigError
from protocol.configfile import read_config
from protocol.wire_keys import allow, is_id, is_key, pin_gateway_key

_id_argument = click.argument("process_id", metavar="ID", shell_complete=complete_ids)
_key_argument = click.argument("key", metavar="KEY")


@click.group(
    "worker-key",
    epilog=taught(
        "clusterctl worker-key show studio-2",
        "clusterctl worker-key allow studio-2 'KEY'",
        "clusterctl worker-key revoke studio-2",
    ),
)
def worker_key() -> None:
    """Say which workers may come over tcp, and with which key.

    Workers and gateways of one machine need none of this: `init`, `up` and `add-worker` make their keys.
    """


@worker_key.command(epilog=taught("clusterctl worker-key show studio-2", refused="it is no id"))
@_id_argument
@json_option
@reported
def show(process_id: str, as_json: bool) -> None:
    """Print the public key of a worker or gateway of this machine; it gets a pair if it has none."""
    home, _path = places(None)
    _refuse_no_id(process_id)
    key = wire_keys.public_key(home, process_id)
    if as_json:
        output.show_json({"id": process_id, "key": key})
    else:
        click.echo(key)


@worker_key.command(
    "allow",
    epilog=taught("clusterctl worker-key allow studio-2 'KEY'", refused="it is no id, or no key"),
)
@_id_argument
@_key_argument
@reported
def allow_worker(process_id: str, key: str) -> None:
    """Let a worker come to the gateways of this machine, with that public key only.

    Running gateways take it at once. Write the key in single quotes.
    """
    home, _path = places(None)
    _refuse_no_id(process_id)
    _refuse_no_key(key)
    if allow(home, process_id, key):
        click.echo(f"{process_id} may come; to end that: clusterctl worker-key revoke {process_id}")
    else:
        click.echo(f"unchanged: {process_id} may come")


@worker_key.command(epilog=taught("clusterctl worker-key revoke studio-2"))
@_id_argument
@reported
def revoke(process_id: str) -> None:
    """Let a worker not come any more. Running gateways leave it at once; its requests go elsewhere."""
    home, _path = places(None)
    if allow(home, process_id, None):
        click.echo(f"{process_id} may not come any more")
    else:
        click.echo(f"unchanged: {process_id} may not come")


@worker_key.command(
    epilog=taught("clusterctl worker-key pin gw-1 'KEY'", refused="it is no id, or no key"),
)
@_id_argument
@_key_argument
@reported
def pin(process_id: str, key: str) -> None:
    """On a worker's machine: the workers connect to that gateway only if it has that public key."""
    home, path = places(None)
    _refuse_no_id(process_id)
    _refuse_no_key(key)
    pin_gateway_key(home, process_id, key)
    click.echo(f"workers that are started from now on expect this key of {process_id}")
    with contextlib.suppress(ConfigError):  # which may come later
        gateways = [gateway.id for gateway in read_config(path).all_gateways]
        if process_id not in gateways:
            output.say(
                f"note: no configured gateway has the id {process_id}; there are: {', '.join(gateways)}"
            )


@worker_key.command("list", epilog=taught("clusterctl worker-key list --json", refused="no configuration"))
@json_option
@config_option
@reported
def list_keys(as_json: bool, config_file: Path | None) -> None:
    """Show the workers that may come, and the gateways' keys that are expected."""
    home, path = places(config_file)
    known = wire_keys.known_keys(home, read_config(path))
    if as_json:
        output.show_json(known)
        return
    for entry in known:
        click.echo(f"{entry['kind']} {entry['id']} {entry['key']}")


def _refuse_no_id(process_id: str) -> None:
    if not is_id(process_id):
        raise RefusedError(f"{process_id!r} is no id: it has 1 to 32 letters, digits, '.', '_' or '-'")


def _refuse_no_key(key: str) -> None:
    if not is_key(key):
        raise RefusedError(
            f"{key!r} is no public key: it has 40 characters, as `clusterctl worker-key show` prints them;"
            " write it in single quotes"
        )


ALL = (worker_key,)
