"""docker/ as files: what Docker Compose and hadolint say of them, and what they promise."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from container_support import BIN, DOCKER, LEFT_TO_TORCH, composed, packages_of, stages

from controlplane.cli.main import app

EVERY = ("compose.yaml", "compose.gpu.yaml")
WITHOUT_SHELL = {"collector"}
ONCE = {"secrets", "setup"}
KVDECK = {"controlplane", "dashboard", "engine"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """As Docker Compose reads them."""
    found: dict[str, Any] = composed("compose.yaml")["services"]
    return found


def test_compose_takes_the_files_alone_and_together(services: dict[str, Any]) -> None:
    together = composed(*EVERY)["services"]
    assert together.keys() == services.keys()
    (device,) = together["engine"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", 1, ["gpu"])
    assert "cuda" in together["engine"]["command"]
    assert together["engine"]["healthcheck"] == services["engine"]["healthcheck"]


def test_the_dockerfile_passes_hadolint_without_exceptions() -> None:
    done = subprocess.run([BIN / "hadolint", DOCKER / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "hadolint" not in (DOCKER / "Dockerfile").read_text(encoding="utf-8")


def test_every_service_is_held_tight(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("cap_add"), name
        assert not service.get("privileged"), name
        assert service["pids_limit"], name
        assert service["restart"] == ("no" if name in ONCE else "unless-stopped"), name


def test_nobody_is_root(services: dict[str, Any]) -> None:
    for name, service in services.items():
        user = service.get("user") or stages()[service["build"]["target"]].last("USER")
        assert user.partition(":")[0] not in ("", "0", "root"), name


def test_ports_are_published_on_loopback_alone(services: dict[str, Any]) -> None:
    published = [(name, port) for name, service in services.items() for port in service.get("ports", ())]
    assert published
    assert {port["host_ip"] for _, port in published} == {"127.0.0.1"}
    assert len({port["published"] for _, port in published}) == len(published)
    assert not services["postgres"].get("ports")


def test_every_tag_is_pinned_to_a_release(services: dict[str, Any]) -> None:
    python = re.search(r"ARG PYTHON=(\S+)", (DOCKER / "Dockerfile").read_text(encoding="utf-8"))
    assert python
    tags = {service["image"].rpartition(":")[2] for service in services.values()} | {python[1]}
    assert not [tag for tag in tags if not re.fullmatch(r"v?\d+\.\d+(\.\d+)?(-[a-z0-9.-]+)?", tag)]
    outside = {value for stage in stages().values() for name, value in stage.instructions if name == "FROM"}
    assert {value.partition(" ")[0] for value in outside} - stages().keys() == {"python:${PYTHON}"}


def test_what_serves_has_a_health_check_where_its_image_can_run_one(services: dict[str, Any]) -> None:
    assert {name for name, service in services.items() if "healthcheck" not in service} == WITHOUT_SHELL | ONCE
    for name, service in services.items():
        for other, waits in service.get("depends_on", {}).items():
            if waits["condition"] == "service_healthy":
                assert "healthcheck" in services[other], (name, other)
            if waits["condition"] == "service_completed_successfully":
                assert other in ONCE, (name, other)


def test_no_secret_is_in_an_environment(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for variable, value in (service.get("environment") or {}).items():
            if re.search(r"PASSWORD|SECRET|TOKEN", variable):
                assert variable.endswith(("_FILE", "__FILE")), (name, variable)
                assert value.startswith("/run/kvdeck/"), (name, variable)
            assert not re.search(r"://[^/@]+:[^/@]+@", value), (name, variable)


def test_each_secret_is_mounted_where_it_is_read_and_nowhere_else(services: dict[str, Any]) -> None:
    readers: dict[str, set[str]] = {}
    for name, service in services.items():
        for mount in service.get("volumes", ()):
            if mount["target"].startswith("/run/kvdeck/"):
                readers.setdefault(mount["source"], set()).add(name)
                assert mount.get("read_only") or name in ONCE, name
    deck = {"secrets", "setup", "postgres", "controlplane-1", "controlplane-2", "dashboard"}
    assert readers == {
        "database-password": deck,
        "grafana-password": {"secrets", "grafana"},
        "engine-token": {"setup", "engine"},
    }


def test_what_is_mounted_from_here_is_here(services: dict[str, Any]) -> None:
    mounted = [m for service in services.values() for m in service.get("volumes", ()) if m["type"] == "bind"]
    assert mounted
    assert all(Path(mount["source"]).is_file() and mount["read_only"] for mount in mounted)


def test_what_runs_is_a_verb(services: dict[str, Any]) -> None:
    import typer

    verbs = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    ours = {name: service for name, service in services.items() if service["image"].startswith("kvdeck/")}
    assert {service["build"]["target"] for service in ours.values()} == KVDECK
    assert {service["command"][0] for service in ours.values()} <= verbs


def test_the_lists_of_packages_are_those_of_today() -> None:
    spec = importlib.util.spec_from_file_location("kvdeck_requirements", DOCKER / "requirements.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for image in KVDECK:
        written = (DOCKER / "requirements" / f"{image}.txt").read_text(encoding="utf-8")
        assert written == module.requirements(image), "run: .venv/bin/python docker/requirements.py"


def test_only_the_engine_image_brings_torch_and_only_the_dashboard_draws() -> None:
    assert set(packages_of("engine")) >= set(LEFT_TO_TORCH)
    for image in ("controlplane", "dashboard"):
        assert not {"torch", "safetensors"} & set(packages_of(image))
    for image in ("controlplane", "engine"):
        assert not {"streamlit", "plotly", "pandas"} & set(packages_of(image))


def test_the_collector_passes_on_what_engines_send(services: dict[str, Any]) -> None:
    config = yaml.safe_load((DOCKER / "collector" / "collector.yaml").read_text(encoding="utf-8"))
    named = {part: set(config[part]) for part in ("receivers", "processors", "exporters")}
    pipeline = config["service"]["pipelines"]["traces"]
    assert {part: set(pipeline[part]) for part in named} == named
    assert pipeline["processors"][0] == "memory_limiter"
    host, _, port = config["exporters"]["otlp/jaeger"]["endpoint"].partition(":")
    assert (host in services, port) == (True, "4317")
    told = services["engine"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"]
    endpoint = config["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert told == f"http://collector:{endpoint.rpartition(':')[2]}"
    assert services["engine"]["environment"]["OTEL_METRICS_EXPORTER"] == "none"  # Prometheus pulls them


def test_prometheus_scrapes_names_and_ports_that_are_there(services: dict[str, Any]) -> None:
    config = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    targets = {t for job in config["scrape_configs"] for part in job["static_configs"] for t in part["targets"]}
    engine = services["engine"]["environment"]["KVDECK_METRICS_PORT"]
    api = services["controlplane-1"]["environment"]["KVDECK_API_PORT"]
    assert targets == {f"engine:{engine}", f"controlplane-1:{api}", f"controlplane-2:{api}"}


def test_another_host_name_can_be_allowed() -> None:
    added = composed("compose.yaml", KVDECK_MORE_HOSTS="kvdeck.example")["services"]["controlplane-1"]["environment"]
    assert added["KVDECK_ALLOWED_HOSTS"].endswith(",kvdeck.example")
