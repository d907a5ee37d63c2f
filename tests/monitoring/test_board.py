"""The Grafana board of deploy/monitoring: it shows all that is told, and Prometheus takes what it asks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.measures import MEASURES

BOARD = json.loads((Path(__file__).parents[2] / "deploy" / "monitoring" / "grafana.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
ASKED = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]


def names(expression: str) -> set[str]:
    """The measures that it asks for, as the table calls them."""
    found = re.findall(r"\b(?:vllm:|studiofleet_)\w+", expression)
    return {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in found}


def test_every_measure_is_on_the_board_and_nothing_else():
    assert {name for _, expression in ASKED for name in names(expression)} == {m.name for m in MEASURES}


@pytest.mark.parametrize(("title", "expression"), ASKED)
def test_an_expression_asks_for_labels_that_its_measures_have(title: str, expression: str):
    (labels,) = {measure.labels for measure in MEASURES if measure.name in names(expression)}
    given = set(re.findall(r'(\w+)(?:=~|!=|=)"', expression))
    given |= {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
    assert given <= {*labels, "job", "instance", "le"}, title
    shown = [t["legendFormat"] for p in PANELS if p["title"] == title for t in p["targets"]]
    assert {label for legend in shown for label in re.findall(r"{{(\w+)}}", legend)} <= given | set(labels)


def test_panels_have_titles_and_places_of_their_own():
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in BOARD["panels"]]
    assert len(set(places)) == len({p["title"] for p in BOARD["panels"]}) == len(BOARD["panels"])
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: apt-get install prometheus"
)
def test_promtool_takes_every_expression(tmp_path: Path):
    """As rules, since that is what it checks; Grafana fills its variables in before it asks."""
    rules = [
        {"record": f"x{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, (_title, expression) in enumerate(ASKED)
    ]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    checked = subprocess.run(
        ["promtool", "check", "rules", "rules.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules)} rules found" in checked.stdout
