"""A model's chat template tried in a process of its own: it is a program that came with the model.

It may raise, or never end. The child imports what it needs first, so that the time limit is the
template's alone; it runs beside the reading of the weights.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LIMIT_S = 10.0
_START_S = 120.0
"""For the child's own start, on a machine that is busy with weights."""
_BEGUN = b"begun\n"
_CONVERSATION = [{"role": "user", "content": "Hello"}]


class TemplateTrial:
    """Owns the child. `look` until it says True; `close` in any case."""

    def __init__(
        self, template: str, variables: dict[str, Any], file: Path, limit_s: float = LIMIT_S
    ) -> None:
        """`variables` are what the template finds beside the conversation; `file` is where it stands."""
        self._file = file
        self._limit_s = limit_s
        self._said = b""
        self._deadline = time.monotonic() + _START_S
        self._begun = False
        environ = os.environ | {"TRANSFORMERS_VERBOSITY": "error"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "worker.engine.trial"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the trial of the template has no pipes")
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        with contextlib.suppress(BrokenPipeError), self._process.stdin as file_in:
            file_in.write(json.dumps([template, variables]).encode())

    def look(self) -> bool:
        """Whether it is over, and went well. Raises `ValueError` when it did not. Never blocks."""
        ended = self._process.poll() is not None
        self._said += self._output.read() or b""
        if not self._begun and self._said.startswith(_BEGUN):
            self._begun = True
            self._deadline = time.monotonic() + self._limit_s
        if not ended:
            if time.monotonic() > self._deadline:
                self.close()
                raise ValueError(self._what_is_wrong(f"did not end within {self._limit_s:g} s"))
            return False
        verdict = self._said.removeprefix(_BEGUN).decode(errors="replace").strip()
        if verdict != "well":
            raise ValueError(
                self._what_is_wrong(verdict or f"ended the process ({self._process.returncode})")
            )
        return True

    def _what_is_wrong(self, verdict: str) -> str:
        return (
            f"the chat template in {self._file} {verdict}, given one message of a user;"
            " copy the file again, or mend the template"
        )

    def close(self) -> None:
        """End the child if it still runs. Idempotent."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._output.close()


def main() -> None:
    """The child: template and variables on stdin, the verdict on stdout."""
    template, variables = json.load(sys.stdin)
    from transformers.utils.chat_template_utils import render_jinja_template  # noqa: PLC0415 (in the child only)

    sys.stdout.write(_BEGUN.decode())
    sys.stdout.flush()
    sys.stdout.write(_verdict(render_jinja_template, template, variables))


def _verdict(render: Any, template: str, variables: dict[str, Any]) -> str:
    try:
        texts, _indices = render(
            [_CONVERSATION], chat_template=template, add_generation_prompt=True, **variables
        )
    except Exception as error:  # noqa: BLE001 (a template is a program)
        return f"fails with {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return "well" if texts[0].strip() else "gives an empty prompt"


if __name__ == "__main__":
    main()
