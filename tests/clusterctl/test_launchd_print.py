import pytest

from clusterctl.launchd_print import parse_print
from clusterctl.services import ServiceState

# Synthetic, put together from what several people have logged of macOS 14 to 26.
STOPPED = """\
system/studiofleet.worker.smol-1 = {
\tactive count = 0
\tpath = /Library/LaunchDaemons/studiofleet.worker.smol-1.plist
\ttype = LaunchDaemon
\tstate = not running

\tprogram = /opt/studiofleet/versions/0.4.1/bin/python
\targuments = {
\t\t/opt/studiofleet/versions/0.4.1/bin/python
\t}

\tstdout path = /opt/studiofleet/log/smol-1.log
\tenvironment = {
\t\tODD => x
\tstate => running
\t\tpid = 77
\t\tXPC_SERVICE_NAME => studiofleet.worker.smol-1
\t}

\tdomain = system
\tminimum runtime = 30
\texit timeout = 90
\truns = 5
\tlast exit code = 78: EX_CONFIG

\tsemaphores = {
\t\tsuccessful exit => 0
\t}

\tresource coalition = {
\t\tID = 1114
\t\tstate = active
\t\tactive count = 1
\t}

\tspawn type = interactive (4)
\tjetsam priority = 40
\tjob state = exited
\tproperties = keepalive | runatload | has LWCR
}
"""


def test_only_the_lines_of_the_job_itself_count():
    assert parse_print(STOPPED) == ServiceState(
        loaded=True,
        runs=5,
        last_exit=78,
        exit_timeout_s=90,
        throttle_s=30,
        spawn_type="interactive",
        path="/Library/LaunchDaemons/studiofleet.worker.smol-1.plist",
    )


def test_a_running_job_has_a_pid():
    state = parse_print(
        STOPPED.replace("\tstate = not running", "\tstate = running").replace("\truns", "\tpid = 412\n\truns")
    )
    assert (state.running, state.pid) == (True, 412)


@pytest.mark.parametrize("word", ["spawn scheduled", "xpcproxy", "not running", "running"])
def test_without_a_pid_nothing_runs(word):
    assert not parse_print(STOPPED.replace("not running", word)).running


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("last exit code = 0", (0, "", "")),
        ("last exit code = (never exited)", (None, "", "")),
        ("last exit code = 75", (75, "", "")),
        ("last terminating signal = Killed: 9", (None, "SIGKILL", "")),
        ("last terminating signal = Segmentation fault: 11", (None, "SIGSEGV", "")),
        ("last terminating signal = Something new: 99", (None, "Something new: 99", "")),
        ("last exit reason = OS_REASON_JETSAM", (None, "", "OS_REASON_JETSAM")),
    ],
)
def test_why_it_ended(line, expected):
    state = parse_print(STOPPED.replace("last exit code = 78: EX_CONFIG", line))
    assert (state.last_exit, state.last_signal, state.reason) == expected


def test_of_an_unknown_text_only_that_it_is_loaded():
    assert parse_print("who knows\n\tstate running\n") == ServiceState(loaded=True)
