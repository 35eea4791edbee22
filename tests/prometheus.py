"""A Prometheus of its own for the time of a test, with the rules of the chart."""

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.cli.child import Child
from tests.ports import free_port

CHART = Path(__file__).parent.parent / "deploy" / "helm" / "prefixlb"
RULES = sorted((CHART / "alerts").glob("*.yaml"))
NAMESPACE = "llm"


def program(name: str) -> str:
    """Path of `prometheus` or `promtool`, which no Python package brings."""
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"no {name} in PATH. Debian, Ubuntu: apt-get install prometheus")
    return found


def promtool(*arguments: str | Path, given: str = "") -> None:
    """Run it; fail with what it says if it does."""
    command = [program("promtool"), *map(str, arguments)]
    ended = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr


class Prometheus:
    """Asked over HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The samples of an expression now; whatever is wrong with it raises HTTPError."""
        return list(self._get("query", query=expr)["result"])

    def rules(self) -> list[dict[str, Any]]:
        """All rules as they were evaluated last."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def labels(self, name: str, label: str) -> list[str]:
        """What Grafana offers for `label_values(name, label)`."""
        return list(self._get(f"label/{label}/values", **{"match[]": name}))

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def _get(self, what: str, **asked: str) -> Any:
        url = f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]


@contextmanager
def prometheus(directory: Path, jobs: Mapping[str, Sequence[str]]) -> Iterator[Prometheus]:
    """Scrapes each second the metrics pages (HOST:PORT) of each job."""
    scraped = [
        {
            "job_name": job,
            "static_configs": [{"targets": [*pages], "labels": {"namespace": NAMESPACE}}],
        }
        for job, pages in jobs.items()
    ]
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(each) for each in RULES],
        "scrape_configs": scraped,
    }
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    process = Child(
        "prometheus",
        [
            *(program("prometheus"), f"--config.file={file}"),
            *(f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={address}"),
        ],
        address=address,
        log=directory / "prometheus.log",
    )
    process.start()
    try:
        asked = Prometheus(f"http://{address}")
        deadline_s = time.monotonic() + 30
        while not asked.ready():
            assert process.running and time.monotonic() < deadline_s, process.log.read_text()
            time.sleep(0.1)
        yield asked
    finally:
        process.stop()
        process.kill()
