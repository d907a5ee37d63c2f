"""What `clusterctl completion` prints, in the shells themselves."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.cluster import PATIENCE_S
from tests.integration.operating import Operator, operating

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
    try:
        pid, terminal = pty.fork()
    except OSError as error:
        pytest.skip(f"this machine has no pseudo-terminals: {error}")
    if pid == 0:
        os.execvpe("zsh", ["zsh", "-i"], {**operator.environ, "ZDOTDIR": str(tmp_path), "TERM": "vt100"})
    try:
        shown = until(terminal, "", lambda text: "ready> " in text)
        tabs = "\t" * min(len(found), 2)  # the second lists what the first cannot choose from
        os.write(terminal, f"{typed}{tabs}".encode())
        until(terminal, shown, lambda text: all(word in text.split("ready> ")[-1] for word in found))
    finally:
        os.close(terminal)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def until(terminal: int, shown: str, is_there: Callable[[str], bool]) -> str:
    """What the terminal shows, once that is there."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_there(shown):
        readable, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert readable, f"in vain: {shown!r}"
        shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", os.read(terminal, 4096).decode(errors="replace"))
    return shown
