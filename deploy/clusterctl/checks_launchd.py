"""What may be wrong with our jobs of launchd, above all that they run under older lists. Pure.

Nothing of this is verified on a Mac: it is how we understand it.
"""

from __future__ import annotations

from collections.abc import Iterator

from clusterctl.diagnosis import Check, Found, Level
from clusterctl.facts import Facts, Job

_ANEW = 'write it anew: clusterctl up where supervisor = "launchd", else clusterctl boot install'


def _jobs(facts: Facts) -> Iterator[Job]:
    if facts.machine.mac is not None:
        yield from facts.machine.mac.jobs


def _process_class(facts: Facts) -> Iterator[Found]:
    for job in _jobs(facts):
        if job.loaded.spawn_type and job.loaded.spawn_type != "interactive":
            yield Found(
                f"launchd runs {job.label} as {job.loaded.spawn_type!r}: processor and GPU are throttled,"
                " up to eight times slower",
                f"set ProcessType to Interactive in its property list. {_reload(job)}",
            )


def _exit_timeout(facts: Facts) -> Iterator[Found]:
    for job in _jobs(facts):
        loaded = job.loaded.exit_timeout_s
        if loaded is None or not job.list_is_there:
            continue
        if job.exit_timeout_s is None:
            yield Found(
                f"the property list of {job.label} names no ExitTimeOut: launchd kills it {loaded} s after"
                " it is told to end, in the middle of requests",
                f"{_ANEW}. {_reload(job)}",
            )
        elif loaded != job.exit_timeout_s:
            yield Found(
                f"launchd has loaded {job.label} with an exit time-out of {loaded} s, and its property"
                f" list has {job.exit_timeout_s} s: it runs under an older list",
                _reload(job),
            )


def _throttle(facts: Facts) -> Iterator[Found]:
    for job in _jobs(facts):
        loaded = job.loaded.throttle_s
        if loaded is not None and job.throttle_s is not None and loaded != job.throttle_s:
            yield Found(
                f"launchd has loaded {job.label} with a minimum runtime of {loaded} s, and its property"
                f" list has {job.throttle_s} s: it runs under an older list",
                _reload(job),
            )


def _list_gone(facts: Facts) -> Iterator[Found]:
    for job in _jobs(facts):
        if not job.list_is_there:
            yield Found(
                f"the property list of {job.label} ({job.loaded.path}) is gone: after the next boot it"
                " does not start",
                _ANEW,
            )


def _reload(job: Job) -> str:
    sudo = "sudo " if job.domain == "system" else ""
    return (
        f"Then, when nothing runs: {sudo}launchctl bootout {job.domain}/{job.label};"
        f" {sudo}launchctl bootstrap {job.domain} {job.loaded.path}"
    )


def _agents(facts: Facts) -> Iterator[Found]:
    for job in _jobs(facts):
        if job.domain != "system":
            yield Found(
                f"{job.label} is an agent: it starts when somebody logs in, ends at the log-out, and may not"
                " reach other machines of the network (macOS 15 and later)",
                'use daemons instead: supervisor = "launchd", or clusterctl boot show --daemon',
            )


CHECKS = (
    Check("launchd.process-class", Level.ERROR, "a job that is throttled", _process_class),
    Check("launchd.exit-timeout", Level.ERROR, "a job that launchd kills before it is done", _exit_timeout),
    Check("launchd.minimum-runtime", Level.WARNING, "a job that runs under an older list", _throttle),
    Check("launchd.list-gone", Level.ERROR, "a job whose property list was removed", _list_gone),
    Check("launchd.agent", Level.WARNING, "an agent where a daemon is needed", _agents),
)
