"""The page of all commands, generated from what `--help` says.

`python -P -m clusterctl.reference FILE` writes it; with `--check` it fails when FILE is not current.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from clusterctl.cli import cli

_WIDTH = 100
_HEAD = """\
# clusterctl

Written by `scripts/docs` from `clusterctl COMMAND --help`. What the commands are for:
[Operations](operations.md).
"""


def reference_text() -> str:
    """The page as the committed file has it."""
    sections = [f"\n## {name}\n\n```text\n{_help(context)}\n```\n" for name, context in contexts()]
    return _HEAD + "".join(sections)


def contexts(
    command: click.Command = cli, parent: click.Context | None = None
) -> Iterator[tuple[str, click.Context]]:
    """Every command with its whole name, groups before what is in them."""
    name = command.name if parent else "clusterctl"
    context = click.Context(command, parent, name, terminal_width=_WIDTH, **command.context_settings)
    yield context.command_path, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from contexts(command.commands[name], context)


def _help(context: click.Context) -> str:
    text = context.command.get_help(context)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def write_or_check(text: str, about: str | None) -> None:
    """The program of a page: writes the file that it is given, or with `--check` compares."""
    arguments = argparse.ArgumentParser(prog="docs", description=about)
    arguments.add_argument("file", type=Path)
    arguments.add_argument("--check", action="store_true")
    options = arguments.parse_args()
    if not options.check:
        options.file.write_text(text, encoding="utf-8")
    elif not options.file.exists() or options.file.read_text(encoding="utf-8") != text:
        sys.exit(f"{options.file} is not current; run: scripts/docs")


if __name__ == "__main__":
    write_or_check(reference_text(), __doc__)
