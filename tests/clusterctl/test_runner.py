"""Running programs on this machine."""

from __future__ import annotations

import sys

import pytest

from clusterctl.runner import NOT_FOUND, Ended, LocalRunner, RunnerTimeoutError


def test_a_program_is_run_with_its_input_and_leaves_code_and_output():
    program = "import sys; print(sys.stdin.read().upper()); sys.stderr.write('oh\\nno\\n'); sys.exit(7)"
    ended = LocalRunner().run([sys.executable, "-c", program], stdin=b"hi")
    assert (ended.code, ended.out, ended.words) == (7, "HI\n", "no")


def test_a_program_that_is_not_there_is_an_exit_code():
    assert LocalRunner().run(["no-such-program"]).code == NOT_FOUND


def test_a_program_that_does_not_end_is_ended():
    with pytest.raises(RunnerTimeoutError, match=r"did not end within 0\.1 s"):
        LocalRunner().run([sys.executable, "-c", "import time; time.sleep(60)"], limit_s=0.1)


def test_words_fall_back_to_the_exit_code():
    assert (Ended(3, out="only this").words, Ended(3).words) == ("only this", "exit code 3")
