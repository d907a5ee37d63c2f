import plistlib
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launchd_plist import KEY_TYPES, exit_timeout_s, launchd_plist
from clusterctl.services import ServiceRefusedError, ServiceSpec

GOLDEN = Path(__file__).parents[1] / "golden" / "launchd"
PREFIX = PurePosixPath("/opt/studiofleet")
FORBIDDEN = {
    "Program", "OnDemand", "TimeOut", "Debug", "WaitForDebugger", "WatchPaths", "QueueDirectories", "Nice",
    "HardResourceLimits", "SoftResourceLimits", "LowPriorityIO", "LowPriorityBackgroundIO", "LegacyTimers",
    "SessionCreate", "EnableTransactions", "EnablePressuredExit", "AbandonProcessGroup", "NetworkState",
}  # fmt: skip
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
PATHS = WORDS.map(lambda word: PurePosixPath("/") / word.replace("/", "-"))
NOT_SECRET = WORDS.filter(lambda word: word.isupper() and "KEY" not in word and "TOKEN" not in word)


def a_spec(**changed):
    given = {
        "label": "studiofleet.worker.qwen3-32b",
        "argv": (
            f"{PREFIX}/versions/0.4.1/bin/python",
            "-I",
            "-u",
            "-m",
            "worker",
            "--config",
            f"{PREFIX}/etc/workers/qwen3-32b.toml",
            "--id",
            "qwen3-32b",
        ),
        "environ": {
            "HOME": f"{PREFIX}/home",
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG": "en_US.UTF-8",
            "HF_HUB_OFFLINE": "1",
        },
        "folder": PREFIX / "state" / "qwen3-32b",
        "log": PREFIX / "log" / "qwen3-32b.launchd.log",
        "stop_s": exit_timeout_s(60),
        "throttle_s": 30,
        "user": "_studiofleet",
        "group": "_studiofleet",
    }
    return ServiceSpec(**{**given, **changed})


@pytest.mark.parametrize(("name", "changed"), [("worker", {}), ("agent", {"user": "", "group": ""})])
def test_a_property_list_is_what_was_thought_through(name, changed):
    assert launchd_plist(a_spec(**changed)).decode() == (GOLDEN / f"{name}.plist").read_text()


@given(
    argv=st.tuples(PATHS.map(str), WORDS),
    environ=st.dictionaries(NOT_SECRET, WORDS, max_size=4),
    folder=PATHS,
    log=PATHS,
    drain_s=st.floats(0, 10_000),
    user=st.sampled_from(["", "_studiofleet"]),
)
def test_any_spec_keeps_to_the_table(argv, environ, folder, log, drain_s, user):
    spec = a_spec(
        argv=argv,
        environ=environ,
        folder=folder,
        log=log,
        stop_s=exit_timeout_s(drain_s),
        user=user,
        group="",
    )
    plist = plistlib.loads(launchd_plist(spec))
    assert not FORBIDDEN & plist.keys()
    assert all(type(value) is KEY_TYPES[key] for key, value in plist.items())
    assert all(
        type(word) is str for word in (*plist["ProgramArguments"], *plist["EnvironmentVariables"].values())
    )
    assert all(
        Path(plist[key]).is_absolute() for key in ("WorkingDirectory", "StandardOutPath", "StandardErrorPath")
    )
    assert plist["KeepAlive"] == {"SuccessfulExit": False}
    assert plist["ProcessType"] == "Interactive"
    assert 45 <= plist["ExitTimeOut"] <= 300
    assert ("UserName" in plist) != ("LimitLoadToSessionType" in plist)
    assert plist["ProgramArguments"] == list(argv)


def test_no_key_is_both_written_and_forbidden():
    assert not FORBIDDEN & KEY_TYPES.keys()


@pytest.mark.parametrize(
    ("drain_s", "granted"), [(0, 45), (15, 45), (15.1, 46), (60, 90), (270, 300), (9e9, 300)]
)
def test_the_time_to_end_is_the_drain_and_a_margin_within_bounds(drain_s, granted):
    assert exit_timeout_s(drain_s) == granted


def test_the_mask_of_files_is_decimal():
    assert b"<key>Umask</key>\n\t<integer>23</integer>" in launchd_plist(a_spec())


@pytest.mark.parametrize(
    "changed",
    [
        {"environ": {"STUDIOFLEET_API_KEY": "x"}},
        {"environ": {"HF_TOKEN": "x"}},
        {"environ": {"SETTING": "hf_abcdefghijklmnop"}},
        {"argv": ("/bin/worker", "--token", "x")},
        {"argv": ("/bin/worker", "--header=sk-abcdefghijklmnop")},
        {"argv": ("/bin/worker", "-----BEGIN PRIVATE KEY-----")},
    ],
)
def test_a_secret_is_refused_and_not_shown(changed):
    with pytest.raises(ServiceRefusedError, match="looks like a secret") as error:
        a_spec(**changed)
    assert "abcdefghijklmnop" not in str(error.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"label": "../evil"},
        {"label": ""},
        {"argv": ("python",)},
        {"folder": PurePosixPath("state")},
        {"log": PurePosixPath("log")},
        {"stop_s": 0},
        {"throttle_s": 0},
    ],
)
def test_what_launchd_would_not_take_is_refused(changed):
    with pytest.raises(ServiceRefusedError, match=r"no label|not absolute|at least one"):
        a_spec(**changed)
