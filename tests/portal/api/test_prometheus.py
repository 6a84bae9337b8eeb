"""Test the alert rules and the dashboards with Debian's Prometheus, which scrapes a running portal."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from portal.reads.monitoring.definitions import METRICS
from portal.services.people import api_tokens
from tests.portal.api.monitored_world import fill_monitored_world
from tests.waiting import wait_until
from tests.world import World, build_world
from tools.paths import find_program

# Metrics that Prometheus itself writes for each scrape.
OF_PROMETHEUS = {"up", "scrape_duration_seconds", "scrape_samples_scraped"}
# Grafana replaces these names before it sends a query.
VARIABLES = {"$pool": ".*", "$host": ".*", "$team": ".*", "$__rate_interval": "1m"}
STARTING = 503  # status of Prometheus until its storage is open
DASHBOARDS = ("fleet", "gpus", "money", "queue", "teams", "telemetry")


def promtool(*arguments: str | Path) -> str:
    """Run promtool, and return its output. The test fails if promtool finds a fault."""
    done = subprocess.run(
        [str(find_program("promtool")), *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alert_rules(root: Path) -> list[dict[str, Any]]:
    text = (root / "deploy" / "prometheus" / "gpupool_alerts.yml").read_text()
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def dashboard(root: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "deploy" / "grafana" / f"{name}.json").read_text())
    return found


def queries_of(board: dict[str, Any]) -> list[str]:
    """Return the queries of the panels, with values for the variables."""
    return [_filled(target["expr"]) for panel in board["panels"] for target in panel["targets"]]


def _filled(query: str) -> str:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


def metrics_in(query: str) -> set[str]:
    names = re.findall(r"\b(?:gpupool_[a-z_]+|up|scrape_[a-z_]+)\b", query)
    return set(names)


def test_there_are_six_dashboards(root: Path) -> None:
    assert sorted(path.stem for path in (root / "deploy" / "grafana").glob("*.json")) == sorted(DASHBOARDS)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_is_complete(root: Path, name: str) -> None:
    board = dashboard(root, name)
    assert board["uid"] == f"gpupool-{name}"
    panels = board["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels:
        assert panel["datasource"] == source
        assert panel["title"] and panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"]
    cells = [
        (x, y)
        for panel in panels
        for of in [panel["gridPos"]]
        for x in range(of["x"], of["x"] + of["w"])
        for y in range(of["y"], of["y"] + of["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert max(x for x, _ in cells) < 24
    variables = {each["name"] for each in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(board))) - {"__rate_interval", "__all"}
    assert used == variables


def test_queries_and_rules_use_only_metrics_that_exist(root: Path) -> None:
    known = METRICS.keys() | OF_PROMETHEUS
    expressions = [query for name in DASHBOARDS for query in queries_of(dashboard(root, name))]
    expressions += [rule["expr"] for rule in alert_rules(root)]
    for expression in expressions:
        assert metrics_in(expression) and metrics_in(expression) <= known, expression


def test_the_dashboards_show_every_metric(root: Path) -> None:
    shown = {
        metric
        for name in DASHBOARDS
        for query in queries_of(dashboard(root, name))
        for metric in metrics_in(query)
    }
    assert shown >= METRICS.keys()


@pytest.mark.prometheus
def test_the_rules_and_the_example_configuration_are_valid(root: Path, tmp_path: Path) -> None:
    folder = root / "deploy" / "prometheus"
    promtool("check", "rules", folder / "gpupool_alerts.yml")
    promtool("check", "config", "--syntax-only", folder / "prometheus.yml")


@pytest.mark.prometheus
def test_each_alert_fires_in_its_example_and_none_in_a_healthy_pool(root: Path) -> None:
    tests = root / "deploy" / "prometheus" / "gpupool_alerts_test.yml"
    promtool("test", "rules", tests)
    cases = yaml.safe_load(tests.read_text())["tests"]
    fired = {
        case["name"]: [sample["labels"] for sample in case["promql_expr_test"][0].get("exp_samples", [])]
        for case in cases
    }
    names = [rule["alert"] for rule in alert_rules(root)]
    assert list(fired) == ["a healthy pool", *names]
    assert fired["a healthy pool"] == []
    for name in names:
        assert f'{{alertname="{name}"}}' in fired[name]


@pytest.mark.prometheus
def test_each_alert_says_what_to_do_and_how_urgent_it_is(root: Path) -> None:
    for rule in alert_rules(root):
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["description"].endswith(".")


class RunningPrometheus:
    """A Prometheus that scrapes the portal every second."""

    def __init__(self, folder: Path, portal: str, token: str, rules: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        (folder / "token").write_text(token)
        configuration = yaml.safe_load((rules.parent / "prometheus.yml").read_text())
        [job] = configuration["scrape_configs"]
        # The test changes only the address, the scheme and the paths of the example.
        job |= {"scheme": "http", "scrape_interval": "1s", "scrape_timeout": "1s"}
        job["authorization"]["credentials_file"] = str(folder / "token")
        job["static_configs"] = [{"targets": [urllib.parse.urlsplit(portal).netloc]}]
        configuration["rule_files"] = [str(rules)]
        configuration["global"] = {"evaluation_interval": "1s"}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        self.output = folder / "prometheus.log"
        with self.output.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    str(find_program("prometheus")),
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=log,
                cwd=folder,
            )

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Return the result of a query now. Raises AssertionError with the message of Prometheus."""
        address = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as problem:
            if problem.code == STARTING:
                raise
            raise AssertionError(f"{query}: {problem.read().decode()}") from None
        result: list[dict[str, Any]] = found["data"]["result"]
        return result

    def has_result(self, query: str) -> bool:
        """Return True if the query has a result. Return False while Prometheus starts."""
        assert self.process.poll() is None, self.output.read_text()
        try:
            return bool(self.ask(query))
        except (urllib.error.URLError, ConnectionError):
            return False


@pytest.fixture
def prometheus(transactional_db: None, live_server: Any, tmp_path: Path, root: Path) -> Iterator[Any]:
    """Start Prometheus beside a portal with work, trouble and money."""
    now = datetime.now(UTC)
    world: World = build_world(now)
    fill_monitored_world(world, now, samples_ahead=timedelta(seconds=80))
    _, token = api_tokens.create_token(
        actor=world.auditor, name="prometheus", now=now, expires_at=now + timedelta(hours=1)
    )
    started = RunningPrometheus(
        tmp_path, live_server.url, token, root / "deploy" / "prometheus" / "gpupool_alerts.yml"
    )
    try:
        yield started
    finally:
        started.stop()


@pytest.mark.prometheus
@pytest.mark.long
def test_each_query_of_dashboards_and_alerts_has_a_result_on_a_running_portal(
    prometheus: RunningPrometheus, root: Path
) -> None:
    # A rate needs two scrapes.
    wait_until(lambda: prometheus.has_result("count_over_time(gpupool_metrics_duration_seconds[1m]) >= 3"))
    assert prometheus.ask('up{job="gpupool"}')[0]["value"][1] == "1"
    for name in DASHBOARDS:
        for query in queries_of(dashboard(root, name)):
            assert prometheus.ask(query), f"{name}: {query} has no result"
    for rule in alert_rules(root):
        for metric in metrics_in(rule["expr"]):
            assert prometheus.ask(metric), f"{rule['alert']}: {metric} has no result"
    loaded = json.load(urllib.request.urlopen(f"{prometheus.url}/api/v1/rules", timeout=10))
    rules = [rule for group in loaded["data"]["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {rule["alert"] for rule in alert_rules(root)}
    assert {rule["health"] for rule in rules} == {"ok"}
