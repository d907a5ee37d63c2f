"""The command that finds out what is wrong: `clusterctl doctor`."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from clusterctl import doctor as examination
from clusterctl import output
from clusterctl.diagnosis import Finding, Level
from clusterctl.home_facts import read_facts
from clusterctl.options import Exit, config_option, json_option, places, reported, taught
from clusterctl.runner import LocalRunner
from clusterctl.transcripts import RecordingRunner


@click.command(
    epilog=taught(
        "clusterctl doctor",
        "clusterctl doctor --fix",
        "clusterctl doctor --report",
        failed="an error was found (warnings and notes are none)",
    )
)
@click.option("--fix", is_flag=True, help="Repair what can be repaired safely, then look again.")
@click.option("--report", is_flag=True, help="Print what was read, for others: no names, keys or prompts.")
@json_option
@config_option
@reported
def doctor(fix: bool, report: bool, as_json: bool, config_file: Path | None) -> None:
    """Look for what is wrong with this machine and its cluster: causes and cures.

    It changes nothing without --fix. All checks: docs/doctor.md.
    """
    if report and fix:
        raise click.UsageError("--report looks only: leave out --fix")
    home, path = places(config_file)
    runner = RecordingRunner(LocalRunner())
    facts = read_facts(runner, home, path, os.environ, datetime.now(UTC))
    findings = examination.examine(facts)
    if report:
        output.show_json(examination.report(facts, findings, runner.calls))
        return
    if fix:
        for finding, fault in examination.repair(runner, home, findings):
            words = finding.fix.words if finding.fix else ""
            output.say(f"{finding.id}: {f'not repaired: {fault}' if fault else words}")
        findings = examination.examine(read_facts(runner, home, path, os.environ, datetime.now(UTC)))
    if as_json:
        output.show_json({"checks": len(examination.CHECKS), "findings": examination.document(findings)})
    else:
        _show(findings)
    if examination.has_errors(findings):
        sys.exit(Exit.FAILED)


def _show(findings: list[Finding]) -> None:
    for finding in findings:
        click.echo(f"{finding.level:<8} {finding.id}: {finding.cause}")
        click.echo(f"{'':<8} {finding.cure}")
    if not findings:
        click.echo(f"nothing is wrong, as far as {len(examination.CHECKS)} checks tell")
        return
    counts = [(sum(it.level is level for it in findings), level.value) for level in Level]
    click.echo(", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts if count))
    if any(it.fix for it in findings):
        output.say("some of it can be repaired at once: clusterctl doctor --fix")
