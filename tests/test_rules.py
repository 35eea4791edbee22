"""Rules, alerts, runbook and dashboard: that they fit together, and by promtool's unit tests.

What they say of a fleet that runs is in test_rules_on_a_fleet.py.
"""

import re
from pathlib import Path

import pytest
import yaml

from tests.prometheus import CHART, RULES, promtool
from tests.rules import ALERTS, DASHBOARD, PANELS, RECORDED, VARIABLES, metrics_in

UNIT_TESTS = sorted((CHART / "alerts" / "tests").glob("*.yaml"))
RUNBOOK = CHART.parent.parent / "runbook.md"


def test_rule_files_are_well_formed() -> None:
    assert len(ALERTS) > 20 and len(RECORDED) > 30
    promtool("check", "rules", "--lint=all", "--lint-fatal", *RULES)


@pytest.mark.parametrize("file", UNIT_TESTS, ids=lambda file: file.stem)
def test_rules_say_what_their_unit_tests_expect(file: Path) -> None:
    promtool("test", "rules", file)


def test_every_rule_is_tested_and_every_alert_both_firing_and_silent() -> None:
    groups = [group for file in UNIT_TESTS for group in yaml.safe_load(file.read_text())["tests"]]
    asked = [test for group in groups for test in group.get("alert_rule_test", ())]
    assert {test["alertname"] for test in asked if test["exp_alerts"]} == ALERTS.keys()
    assert {test["alertname"] for test in asked if not test["exp_alerts"]} >= ALERTS.keys()
    evaluated = [test for group in groups for test in group.get("promql_expr_test", ())]
    seen = {name for test in evaluated if test["exp_samples"] for name in metrics_in(test["expr"])}
    assert seen == RECORDED


def test_every_alert_says_how_grave_it_is_what_it_saw_and_where_to_read_on() -> None:
    for name, alert in ALERTS.items():
        assert alert["labels"]["severity"] in ("warning", "critical"), name
        assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}, name
        assert "{{ $value" in alert["annotations"]["description"], name
        assert metrics_in(alert["annotations"]["description"]) <= RECORDED, name
        assert alert["annotations"]["runbook_url"] == f"deploy/runbook.md#{name.lower()}"


def test_every_alert_has_its_entry_in_the_runbook_and_every_entry_its_alert() -> None:
    runbook = RUNBOOK.read_text()
    entries = re.split(r"^## ", runbook, flags=re.MULTILINE)[1:]
    assert sorted(entry.split("\n", 1)[0] for entry in entries) == sorted(ALERTS)
    for entry in entries:
        assert "\nLook closer: " in entry and "\nDo: " in entry, entry[:80]
    anchors = {f"#{name.lower()}" for name in ALERTS}
    assert set(re.findall(r"\]\((#\w+)\)", runbook)) <= anchors


def test_every_panel_asks_a_question_says_what_it_shows_and_has_a_unit() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in PANELS:
        assert panel["title"].endswith("?") and panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        for target in panel["targets"]:
            assert target["legendFormat"], panel["title"]
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert {"namespace"} <= used <= VARIABLES.keys(), target["expr"]


def test_no_panel_covers_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert max(x for x, _ in cells) < 24 and not cells & taken, panel["title"]
        taken |= cells
