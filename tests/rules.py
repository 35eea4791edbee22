"""What the chart's rule files and dashboard hold."""

import json
import re
from typing import Any

import yaml

from tests.prometheus import CHART, RULES

DASHBOARD = json.loads((CHART / "dashboards" / "prefixlb.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
ALL = [
    rule
    for file in RULES
    for group in yaml.safe_load(file.read_text())["groups"]
    for rule in group["rules"]
]
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in ALL if "alert" in rule}
RECORDED = {rule["record"] for rule in ALL if "record" in rule}


def panel_exprs() -> set[str]:
    """What Grafana asks if everything is chosen of each variable."""
    exprs = {target["expr"] for panel in PANELS for target in panel["targets"]}
    exprs = {each.replace("$__rate_interval", "1m") for each in exprs}
    for name, variable in VARIABLES.items():
        if variable["type"] == "query":
            exprs = {each.replace(f"${name}", variable["allValue"]) for each in exprs}
    return exprs


def metrics_in(expr: str) -> set[str]:
    """Names in an expression, but for those in its strings."""
    return set(re.findall(r"\bprefixlb[\w:]*", re.sub(r'"[^"]*"', "", expr)))


def left_side(expr: str) -> str:
    """What the first comparison or set operator outside of parentheses has at its left."""
    depth = 0
    for found in re.finditer(r'"[^"]*"|[({\[]|[)}\]]|[<>=!]=?|\b(?:and|or|unless)\b', expr):
        depth += (found[0] in "({[") - (found[0] in ")}]")
        if depth == 0 and found[0] not in ")}]" and not found[0].startswith('"'):
            return expr[: found.start()]
    raise ValueError(f"nothing is compared in {expr}")
