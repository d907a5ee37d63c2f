"""What is said of a machine that cannot be reached."""

from __future__ import annotations

import pytest

from clusterctl.ssh import Target, explain

STUDIO = Target("studio-2", "10.0.0.2", port=2222, user="op")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("ssh: connect to host 10.0.0.2 port 2222: Connection timed out", "it does not answer; check that"),
        ("ssh: connect to host 10.0.0.2 port 2222: No route to host", "it does not answer"),
        ("Timeout, server 10.0.0.2 not responding.", "it does not answer"),
        (
            "ssh: connect to host 10.0.0.2 port 2222: Connection refused",
            "nothing listens at that port; on a Mac",
        ),
        (
            "ssh: Could not resolve hostname studio-2.local: Name or service not known",
            "its name is not known",
        ),
        ("op@10.0.0.2: Permission denied (publickey).", "ssh-copy-id -p 2222 op@10.0.0.2"),
        (
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
            "installed anew",
        ),
        (
            "No ED25519 host key is known for studio-2 and you have requested strict checking.",
            "not the pinned",
        ),
        ("kex_exchange_identification: Connection closed by remote host", "ssh failed; see what it says"),
        ("", "the connection ended before the program there did"),
    ],
)
def test_what_ssh_says_is_told_with_a_cure_and_the_command_to_try(said: str, meant: str):
    words = explain(STUDIO, said)
    assert meant in words
    assert words.startswith("studio-2 (10.0.0.2): ")
    assert "To try: ssh -p 2222 op@10.0.0.2" in words
    assert (said.splitlines() or [""])[-1] in words
