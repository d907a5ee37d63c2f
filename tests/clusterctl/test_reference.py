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


def test_every_option_explains_itself():
    silent = [
        f"{name} {option.name}"
        for name, context in COMMANDS.items()
        for option in context.command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert silent == []
