"""The whole of docker/compose.yaml at work: every service of ours as its image would run it, on real Postgres."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from container_support import PATIENCE_SECONDS, Container, Fleet, Images, composed
from databases import _tools

OURS = ("secrets", "setup", "controlplane-1", "controlplane-2", "engine", "dashboard")
ONCE = ("secrets", "setup")
KVDECK_USER = 10001

# What the official image's entrypoint does with the same variables, with this machine's Postgres.
POSTGRES = """
initdb -D "$PGDATA" --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" $POSTGRES_INITDB_ARGS --no-sync
echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -D "$PGDATA" postgres
exec postgres -D "$PGDATA" -c listen_addresses='*' -c fsync=off
"""
# In the place of the collector, whose program is in no package registry: counts the spans that the engine sends it.
SINK = """
import gzip, http.server
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
class Sink(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        sent = ExportTraceServiceRequest.FromString(body)
        print(self.path, sum(len(s.spans) for r in sent.resource_spans for s in r.scope_spans), flush=True)
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("0.0.0.0", 4318), Sink).serve_forever()
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Everything that compose.yaml starts of ours, in its order, with Postgres and Prometheus."""
    folder = tmp_path_factory.mktemp("fleet")
    fleet = Fleet(folder, Images(folder / "images"), composed("compose.yaml")["services"])
    try:
        _up(fleet)
        yield fleet
    finally:
        fleet.close()


def _up(fleet: Fleet) -> None:
    _once(fleet.create("secrets"))
    data = fleet.volume("database")
    data.mkdir(parents=True)
    os.chown(data, _user("postgres"), _user("postgres"))
    path = f"{_tools()}:/usr/bin:/bin"
    environment = {"PATH": path, "PGDATA": "/var/lib/postgresql/data", "LC_ALL": "C"}
    fleet.create("postgres", command=["/bin/sh", "-ec", POSTGRES], environment=environment).start()
    fleet.create("collector", command=["/opt/kvdeck/bin/python", "-c", SINK], environment={}, packages="controlplane")
    fleet.containers["collector"].start()
    fleet.wait_healthy("postgres")
    _once(fleet.create("setup"))
    for name in ("controlplane-1", "controlplane-2", "dashboard"):
        fleet.create(name).start()
    for name in ("controlplane-1", "controlplane-2"):
        fleet.wait_healthy(name)
    fleet.create("engine").start()
    for name in ("engine", "dashboard"):
        fleet.wait_healthy(name)


def _once(container: Container) -> None:
    container.start()
    assert container.process is not None
    assert container.process.wait(PATIENCE_SECONDS) == 0, container.said()


def _user(name: str) -> int:
    import pwd

    return pwd.getpwnam(name).pw_uid


def _kvdeck(container: Container, *words: str) -> str:
    done = container.run("kvdeck", *words)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def _asked(fleet: Fleet, token: str, path: str, name: str = "controlplane") -> Any:
    """What the API answers to another container on the network."""
    return json.loads(_fetched(fleet.containers["dashboard"], f"http://{name}:8410{path}", token))


def _fetched(container: Container, url: str, token: str = "", host: str = "") -> str:
    script = """
import sys, urllib.request as r
url, token, host = sys.argv[1:]
headers = {"Authorization": f"Bearer {token}"} if token else {}
headers |= {"Host": host} if host else {}
sys.stdout.write(r.urlopen(r.Request(url, headers=headers)).read().decode())
"""
    done = container.run("python", "-c", script, url, token, host)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _until(found: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE_SECONDS
    while not (value := found()):
        assert time.monotonic() < end, what
        time.sleep(0.5)
    return value


@pytest.fixture(scope="module")
def operator(fleet: Fleet) -> str:
    """A person's token, made as the page on Docker says."""
    return _kvdeck(fleet.containers["controlplane-1"], "token", "create", "operator", "--role", "operator").strip()


def test_the_engine_is_seen_through_either_control_plane_and_serves_no_wrong_byte(fleet: Fleet, operator: str) -> None:
    for name in ("controlplane-1", "controlplane-2"):

        def live(name: str = name) -> list[str]:
            found = _asked(fleet, operator, "/v1/engines", name)
            return [one["id"] for one in found if one["health"] == "live"]

        assert _until(live, f"{name} sees the engine") == ["engine-1"]
    metrics = _fetched(fleet.containers["engine"], "http://engine:9464/metrics")
    wrong = [line for line in metrics.splitlines() if line.startswith("kvcache_wrong_bytes_total{")]
    assert [line.rpartition(" ")[2] for line in wrong] == ["0.0"]


def test_spans_reach_the_collector_and_the_history(fleet: Fleet, operator: str) -> None:
    sent = _until(lambda: fleet.containers["collector"].said().split("\n")[:-1], "spans at the collector")
    assert all(line.startswith("/v1/traces ") for line in sent)
    assert sum(int(line.split()[1]) for line in sent) > 0
    assert _until(lambda: _asked(fleet, operator, "/v1/prefixes")["rows"], "prefixes in the history")


def test_the_engine_outlives_the_control_plane_it_speaks_to(fleet: Fleet, operator: str) -> None:
    leaders = {name: _leads(fleet, name) for name in ("controlplane-1", "controlplane-2")}
    assert sorted(leaders.values()) == [0.0, 1.0]
    (leader,) = (name for name, leads in leaders.items() if leads)
    (other,) = leaders.keys() - {leader}
    process = fleet.containers[leader].process
    assert process is not None
    process.kill()
    process.wait()
    try:
        _until(lambda: _leads(fleet, other), f"{other} takes over")
        where = ("--url", "http://controlplane:8410", "--token", operator)  # a name that is still both
        _kvdeck(fleet.containers["dashboard"], "compact", "--reason", "still steered", *where)
    finally:
        fleet.containers[leader].start()  # as the restart policy does
        fleet.wait_healthy(leader)


def _leads(fleet: Fleet, name: str) -> float:
    metrics = _fetched(fleet.containers["dashboard"], f"http://{name}:8410/metrics")
    (line,) = (line for line in metrics.splitlines() if line.startswith("kvdeck_leader "))
    return float(line.split()[1])


def test_prometheus_finds_every_target_of_the_shipped_configuration(fleet: Fleet) -> None:
    data = fleet.volume("prometheus-data")
    data.mkdir(parents=True)
    os.chown(data, 65534, 65534)
    words = ["/usr/bin/prometheus", *fleet.services["prometheus"]["command"]]
    prometheus = fleet.create("prometheus", command=words, environment={"PATH": "/usr/bin"})
    prometheus.start()

    def up() -> dict[str, str]:
        body = json.loads(_fetched(fleet.containers["dashboard"], "http://prometheus:9090/api/v1/query?query=up"))
        found = {one["metric"]["instance"]: one["value"][1] for one in body["data"]["result"]}
        return found if len(found) == 3 else {}

    _until(lambda: prometheus.process and "ready to receive" in prometheus.said(), prometheus.said())
    found = _until(up, "three targets")
    assert found == dict.fromkeys(("controlplane-1:8410", "controlplane-2:8410", "engine:9464"), "1")
    rules = json.loads(_fetched(fleet.containers["dashboard"], "http://prometheus:9090/api/v1/rules"))
    assert rules["data"]["groups"]


def test_what_is_running_may_not_write_nor_gain_anything(fleet: Fleet) -> None:
    for name in ("controlplane-1", "engine", "dashboard"):
        container = fleet.containers[name]
        assert container.run("id", "--user").stdout.strip() == str(KVDECK_USER)
        for path in ("/opt/kvdeck/x", "/etc/x", "/x", "/var/lib/x"):
            assert "Read-only file system" in container.run("/bin/sh", "-c", f"echo > {path}").stderr, (name, path)
        status = container.run("cat", "/proc/self/status").stdout
        facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert facts["NoNewPrivs"] == "1"
        assert {int(facts[kind], 16) for kind in ("CapEff", "CapPrm", "CapBnd", "CapInh")} == {0}


def test_only_the_engine_host_holds_torch(fleet: Fleet) -> None:
    script = "from importlib.util import find_spec; print(find_spec('torch') is not None)"
    found = {name: fleet.containers[name].run("python", "-c", script).stdout for name in OURS if name not in ONCE}
    assert {name for name, said in found.items() if said == "True\n"} == {"engine"}
    assert set(found.values()) == {"True\n", "False\n"}


def test_secrets_are_in_files_of_those_who_need_them_and_nowhere_else(fleet: Fleet) -> None:
    modes = {
        "database-password/password": 0o640, "grafana-password/password": 0o640, "engine-token/token": 0o600,
    }  # fmt: skip
    for path, mode in modes.items():
        file = fleet.volume(path).stat()
        assert (stat.S_IMODE(file.st_mode), file.st_uid) == (mode, KVDECK_USER), path
    secrets = [fleet.volume(path).read_text().strip() for path in modes]
    assert len(set(secrets)) == 3
    told = json.dumps(composed("compose.yaml")) + "".join(one.said() for one in fleet.containers.values())
    assert not [secret for secret in secrets if secret in told]
    for name in ("controlplane-1", "engine"):
        process = fleet.containers[name].process
        assert process is not None
        environment = Path(f"/proc/{process.pid}/environ").read_text()
        assert not [secret for secret in secrets if secret in environment]
    assert fleet.containers["engine"].run("ls", "/run/kvdeck/database").stdout == ""


def test_a_second_start_keeps_passwords_tokens_and_history(fleet: Fleet, operator: str) -> None:
    paths = ("database-password/password", "grafana-password/password", "engine-token/token")
    before = [fleet.volume(path).read_text() for path in paths]
    for name in ("secrets", "setup"):
        _once(fleet.containers[name])
    assert [fleet.volume(path).read_text() for path in paths] == before
    assert "kept" in fleet.containers["secrets"].said()
    assert [one["id"] for one in _asked(fleet, operator, "/v1/engines")] == ["engine-1"]


def test_a_name_of_elsewhere_is_refused(fleet: Fleet) -> None:
    with pytest.raises(AssertionError, match="HTTP Error 421"):
        _fetched(fleet.containers["dashboard"], "http://controlplane:8410/healthz", host="evil.example")


def test_a_link_for_the_browser_names_the_published_address(fleet: Fleet) -> None:
    link = _kvdeck(fleet.containers["controlplane-1"], "token", "link")
    assert link.startswith("http://127.0.0.1:8411/?token=kvd_")


def test_each_ends_when_it_is_asked_to(fleet: Fleet) -> None:
    ended = {
        name: fleet.containers[name].stop() for name in ("engine", "dashboard", "controlplane-1", "controlplane-2")
    }
    assert set(ended.values()) <= {0, -signal.SIGTERM}, ended
    assert "prefixes on disk are kept" in fleet.containers["engine"].said()
