"""What `clusterctl completion` prints, in the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.operating import Operator, operating
from tests.integration.terminal import in_terminal

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

# What the TAB key does: the function that is registered for the word is called with what was typed.
BASH = """
eval "$(clusterctl completion bash)"
function_name=$(complete -p clusterctl | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=({words}); COMP_CWORD={last}
"$function_name" clusterctl
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSHRC = """
autoload -Uz compinit && compinit -u -D
eval "$(clusterctl completion zsh)"
unsetopt zle_bracketed_paste 2>/dev/null
PS1='ready> '
"""


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    """With `clusterctl` on the path, and two workers."""
    with operating() as operator:
        program = tmp_path / "bin" / "clusterctl"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -P -c "from clusterctl.cli import main; main()" "$@"\n'
        )
        program.chmod(0o755)
        operator.environ["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        operator.environ["HOME"] = str(tmp_path)
        operator.run("init", "--workers", "2", "--http", "127.0.0.1:0")
        yield operator


CASES = [
    ("clusterctl rest", ["restart"]),
    ("clusterctl restart smol", ["smol-1", "smol-2"]),
    ("clusterctl remove-worker smol-2", ["smol-2"]),
    ("clusterctl boot ins", ["install"]),
    ("clusterctl up --for", ["--foreground"]),
    ("clusterctl top --int", ["--interval"]),
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(("typed", "found"), CASES)
def test_bash_completes_commands_options_and_ids(operator, typed, found):
    words = typed.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    result = subprocess.run(
        ["bash", "--norc", "-c", BASH.format(words=quoted, last=len(words) - 1)],
        env=operator.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == found


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize(("typed", "found"), CASES)
def test_zsh_completes_commands_options_and_ids(operator, tmp_path, typed, found):
    (tmp_path / ".zshrc").write_text(ZSHRC)
    environ = {**operator.environ, "ZDOTDIR": str(tmp_path), "TERM": "vt100"}
    with in_terminal(["zsh", "-i"], environ) as terminal:
        terminal.until(lambda text: "ready> " in text)
        tabs = "\t" * min(len(found), 2)  # the second lists what the first cannot choose from
        terminal.type(f"{typed}{tabs}")
        terminal.until(lambda text: all(word in text.split("ready> ")[-1] for word in found))
