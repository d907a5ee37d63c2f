"""Who operates a fleet: a gateway on this machine that workers of other machines reach."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.fleet.installed import join
from tests.fleet.sshd import Machine, free_port
from tests.integration.operating import Operator, operating


@contextmanager
def fleet_of(*machines: Machine) -> Iterator[Operator]:
    """Whose gateway serves, and who knows these machines."""
    with operating() as operator:
        operator.run("init", "--workers", "0", "--http", "127.0.0.1:0")
        listen_to_others(operator)
        join(operator, *machines)
        operator.run("up", "--wait")
        yield operator


def listen_to_others(operator: Operator) -> None:
    """The gateway that `init` wrote down takes workers of other machines, too."""
    text = operator.home.config.read_text()
    listen = f'listen = ["ipc", "tcp://127.0.0.1:{free_port()}"]'
    operator.home.config.write_text(text.replace('listen = ["ipc"]', listen))
