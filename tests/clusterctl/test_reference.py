import re
import shlex
from pathlib import Path

import click
import pytest

from clusterctl.cli import cli
from clusterctl.reference import contexts, reference_text

PAGE = Path(__file__).parents[2] / "docs" / "clusterctl.md"
COMMANDS = dict(contexts())
EXAMPLES = [
    line.strip()
    for context in COMMANDS.values()
    for line in context.command.get_help(context).splitlines()
    if line.startswith("    clusterctl ")
]


def test_the_page_is_what_the_commands_say():
    assert PAGE.read_text() == reference_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_tells_what_it_does_how_it_is_called_and_what_its_exit_codes_mean(name):
    command = COMMANDS[name].command
    assert re.match(r"[A-Z].+\.$", (command.help or "").split("\n\n")[0], re.DOTALL)
    assert "Exit codes: 0 done or unchanged, 1 " in (command.epilog or "")
    assert f"  {name}" in (command.epilog or "")


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_understood(example):
    words = shlex.split(example)[1:]
    command: click.Command = cli
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    command.make_context("example", words).close()


ACTS = {
    "add-worker",
    "boot install",
    "boot remove",
    "down",
    "drain",
    "helper install",
    "helper remove",
    "init",
    "keys create",
    "keys revoke",
    "keys rotate",
    "model pull",
    "model push",
    "model rm",
    "node add",
    "node remove",
    "remove-worker",
    "restart",
    "undrain",
    "up",
    "worker-key allow",
    "worker-key pin",
    "worker-key revoke",
}
"""What these print is what they did."""
PRINT_ANOTHER_WAY = {
    "completion": "a script for a shell",
    "node run": "what the command there prints, which may be told --json",
    "top": "a picture; its facts are those of status --json",
}


def test_every_command_that_tells_facts_tells_them_to_programs_too():
    """One that is new has to be written down above, or to have --json."""
    without = {
        name.removeprefix("clusterctl ")
        for name, context in COMMANDS.items()
        if not isinstance(context.command, click.Group)
        and not any("--json" in option.opts for option in context.command.params)
    }
    assert without == {*ACTS, *PRINT_ANOTHER_WAY}


def test_every_option_explains_itself():
    silent = [
        f"{name} {option.name}"
        for name, context in COMMANDS.items()
        for option in context.command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert silent == []
