"""Processes into which a module of these tests is imported before anything else."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def environ_with(module: str, folder: Path) -> dict[str, str]:
    """For a process in which `tests.faults.MODULE` begins first. `folder` is the test's own."""
    place = folder / module
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(
        f"from tests.faults import {module}\n{module}.begin()\n", encoding="utf-8"
    )
    return {"PYTHONPATH": f"{place}:{ROOT}:{ROOT / 'deploy'}"}
