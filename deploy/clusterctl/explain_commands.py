"""The command that tells why a request went where it went."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from clusterctl import admin, explaining, output
from clusterctl.options import Exit, config_option, json_option, places, reported, taught
from protocol.configfile import read_config


@click.command(epilog=taught("clusterctl explain req-1f0c", failed="no gateway here knows the request"))
@click.argument("request_id", metavar="ID")
@json_option
@config_option
@reported
def explain(request_id: str, as_json: bool, config_file: Path | None) -> None:
    """Tell the life of a request: who was considered, who rejected it, where it ran, how long it took.

    ID is what the client got as x-request-id; access lines of a gateway's log have it, too. Each of this
    machine's gateways remembers its last 2,000 requests.
    """
    home, path = places(config_file)
    config = read_config(path)
    found = {
        gateway.id: lives
        for gateway in config.local_gateways
        if (lives := admin.read_lives(home, gateway.id, request_id))
    }
    if as_json:
        output.show_json(found)
    for gateway_id, lives in found.items() if not as_json else ():
        for life in lives:
            click.echo("\n".join(explaining.lines(gateway_id, life)))
    if not found:
        unknown = f"no gateway of this machine knows the request {request_id!r} (any more)"
        refused = "what was refused at once stands in the log alone: clusterctl logs --request ID"
        down = "no gateway of this machine answers; to start one: clusterctl up"
        output.say(f"{unknown}; {refused}" if admin.read_states(home, config) else down)
        sys.exit(Exit.FAILED)
