from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clusterctl.runner import LIMIT_S, Ended, Runner, RunnerTimeoutError
from clusterctl.transcripts import PATIENCE_S, TOO_LATE, Censor, RecordingRunner

CENSOR = Censor(Path("/people/ada"), "ada", "studio-1")


class Slow(Runner):
    name = "slow"

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", limit_s: float = LIMIT_S) -> Ended:
        raise RunnerTimeoutError(f"{argv[0]} did not end within {limit_s:g} s")


def test_a_program_that_hangs_counts_as_one_that_failed():
    runner = RecordingRunner(Slow())
    assert runner.run(("vm_stat",)).code == TOO_LATE
    assert f"{PATIENCE_S:g} s" in runner.calls[0].ended.err


def test_names_of_people_and_machines_are_taken_out():
    assert CENSOR("/people/ada/m on studio-1, by ada, of adamant") == "~/m on HOST, by USER, of adamant"


def test_environments_are_taken_out_and_what_follows_them_stays():
    printed = "x = {\n\tenvironment = {\n\t\tHF_TOKEN => hf_x\n\t}\n\n\texit timeout = 5\n}"
    assert CENSOR(printed) == "x = {\n\tenvironment = {…\n\t}\n\n\texit timeout = 5\n}"
    plist = "<key>EnvironmentVariables</key>\n<dict><key>HF_TOKEN</key><string>hf_x</string></dict><key>"
    assert CENSOR(plist) == "<key>EnvironmentVariables</key>\n<dict>…</dict><key>"
