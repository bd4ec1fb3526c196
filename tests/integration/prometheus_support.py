"""A real Prometheus that scrapes what a test runs, with the rules as they are shipped."""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml
from databases import free_port

DOCKER = Path(__file__).parents[2] / "docker"
RULES = DOCKER / "prometheus" / "kvdeck.rules.yml"
PATIENCE_SECONDS = 60.0


class Prometheus:
    """Its HTTP API."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, trust_env=False, timeout=30)

    def query(self, expression: str, at: float | None = None) -> list[dict[str, Any]]:
        """The samples of an instant query. Fails with Prometheus' own words where it refuses the query."""
        answer = self._http.get("/api/v1/query", params={"query": expression} | ({} if at is None else {"time": at}))
        body = answer.json()
        assert body["status"] == "success", (expression, body)
        found = body["data"]["result"]
        return found if body["data"]["resultType"] == "vector" else [{"metric": {}, "value": found}]

    def values(self, expression: str, *labels: str) -> dict[tuple[str, ...], float]:
        """What a query gives by these labels."""
        return {tuple(s["metric"].get(k, "") for k in labels): float(s["value"][1]) for s in self.query(expression)}

    def targets(self) -> list[dict[str, Any]]:
        return list(self._http.get("/api/v1/targets").json()["data"]["activeTargets"])

    def rules(self) -> list[dict[str, Any]]:
        groups = self._http.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def wait_until_scraped_after(self, moment: float) -> None:
        """Until every target was read at a time after `moment`, and each is well."""
        since = dt.datetime.fromtimestamp(moment, dt.UTC)
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            targets = self.targets()
            if targets and all(
                t["health"] == "up" and dt.datetime.fromisoformat(t["lastScrape"]) > since for t in targets
            ):
                return
            assert time.monotonic() < end, [(t["scrapeUrl"], t["health"], t["lastError"]) for t in targets]
            time.sleep(0.1)

    def close(self) -> None:
        self._http.close()


@contextmanager
def running_prometheus(folder: Path, targets: Mapping[str, str]) -> Iterator[Prometheus]:
    """Runs the shipped configuration with other addresses and a scrape a second."""
    program = shutil.which("prometheus")
    assert program, "the tests of /metrics need Prometheus: run `make prometheus`"
    config = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(RULES)]
    assert {job["job_name"] for job in config["scrape_configs"]} == targets.keys()
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    port = free_port()
    command = [
        program, f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    log = (folder / "prometheus.log").open("w")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    prometheus = Prometheus(f"http://127.0.0.1:{port}")
    try:
        _wait_until_ready(f"http://127.0.0.1:{port}/-/ready", process, folder / "prometheus.log")
        yield prometheus
    finally:
        prometheus.close()
        process.terminate()
        process.wait(30)
        log.close()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(url, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"Prometheus did not start: {log.read_text(encoding='utf-8')}")
