# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Alerts fire when they say, and no query of rules or dashboard asks for what is not exported."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.offheap.profiler.plugins.plugin_utils.publish import prometheus

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "extensions" / "prometheus" / "offheap.rules.yml"
DASHBOARD = json.loads((ROOT / "extensions" / "grafana" / "offheap.json").read_text())
ALERTS = [alert for group in yaml.safe_load(RULES.read_text())["groups"] for alert in group["rules"]]
#: what each metric is told of
LABELS = {"unit", "host", "path", "suspect"}


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def dashboard_queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])


def test_each_alert_fires_when_it_says_and_not_before(tmp_path: Path) -> None:
    cases = Path(__file__).with_name("alerts.test.yml").read_text()
    (tmp_path / "test.yml").write_text(cases.replace("RULES", str(RULES)))
    promtool("test", "rules", tmp_path / "test.yml")
    tried = {case["alertname"] for test in yaml.safe_load(cases)["tests"] for case in test["alert_rule_test"]}
    assert tried == {alert["alert"] for alert in ALERTS}


def test_prometheus_takes_every_query(tmp_path: Path) -> None:
    queries = [query.replace("$unit", ".*").replace("$host", ".*") for query in dashboard_queries()]
    records: list[dict[str, Any]] = [
        {"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": records}]}))
    assert f"{len(queries)} rules found" in promtool("check", "rules", tmp_path / "rules.yml")
    promtool("check", "rules", RULES)


@pytest.mark.parametrize("query", [*(alert["expr"] for alert in ALERTS), *dashboard_queries()])
def test_every_metric_and_label_exists(query: str) -> None:
    assert set(re.findall(r"offheap_\w+", query)) <= set(prometheus.METRICS)
    matched = re.findall(r"(\w+)=~?\"", query)
    grouped = re.findall(r"(?:by|on) \(([\w, ]+)\)", query)
    assert {*matched, *(name for names in grouped for name in names.split(", "))} <= LABELS


def test_every_label_of_a_text_exists() -> None:
    texts = [text for alert in ALERTS for text in alert["annotations"].values()]
    assert set(re.findall(r"\$labels\.(\w+)", " ".join(texts))) <= LABELS
    legends = [target.get("legendFormat", "") for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert set(re.findall(r"\{\{(\w+)\}\}", " ".join(legends))) <= LABELS
    variables = [one["query"]["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    assert variables == [
        "label_values(offheap_live_bytes, unit)",
        'label_values(offheap_live_bytes{unit=~"$unit"}, host)',
    ]
