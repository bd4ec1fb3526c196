"""Prometheus pulls from a real engine host and control plane: its values are theirs, and all that is shipped works."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from databases import free_port
from live_support import Deck
from prometheus_client.parser import text_string_to_metric_families
from prometheus_support import DOCKER, RULES, Prometheus, running_prometheus
from telemetry_support import SPEC, loud_config, replay, restore_one, run, say_everything

from controlplane.auth import Role
from controlplane.errors import SettingsError
from controlplane.host.deck import engine_on_deck
from controlplane.settings import VoiceSettings
from engine import CacheEngine
from engine.telemetry.registry import INSTRUMENTS, InstrumentKind

BOARD = json.loads((DOCKER / "grafana" / "kvdeck.json").read_text(encoding="utf-8"))
RULE_GROUPS = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
ALL_RULES = [rule for group in RULE_GROUPS for rule in group["rules"]]
VARIABLES = {"$engine": ".*", "$__rate_interval": "1m", "$__range": "10m"}


@dataclass
class Scraped:
    """An engine that rests, the control plane it speaks to, and a Prometheus that has read both."""

    engine: CacheEngine
    deck: Deck
    prometheus: Prometheus
    engine_url: str


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    folder = tmp_path_factory.mktemp("scraped")
    deck = Deck(folder, with_scheduler=True)
    deck.start()
    port = free_port()
    voice = VoiceSettings(metrics_port=port)
    targets = {"kvdeck-engine": f"127.0.0.1:{port}", "kvdeck-controlplane": deck.url.removeprefix("http://")}
    config = loud_config(folder / "engine")
    try:
        with (
            engine_on_deck(SPEC, config, url=deck.url, token=deck.tokens[Role.ENGINE], voice=voice) as engine,
            running_prometheus(folder, targets) as prometheus,
        ):
            prometheus.wait_until_scraped_after(0.0)
            say_everything(engine, 100)
            prometheus.wait_until_scraped_after(time.time())
            replay(engine, 60, seed=9)  # so that every rate has something to grow from
            with deck.client() as client:
                client.submit(engine.id, "compact", {"max_pages": 1}, reason="test")
            time.sleep(3.0)  # the history's batches, the engine's metrics
            wait_until_recorded(prometheus, engine)
            prometheus.wait_until_scraped_after(time.time())
            yield Scraped(engine, deck, prometheus, f"http://127.0.0.1:{port}")
    finally:
        deck.stop()
        deck.store.dispose()


def wait_until_recorded(prometheus: Prometheus, engine: CacheEngine) -> None:
    """Rates need growth between two scrapes: traffic goes on until every recording rule has made its series."""
    names = [rule["record"] for rule in ALL_RULES if "record" in rule]
    end = time.monotonic() + 60
    for seed in itertools.count(10):
        missing = [name for name in names if not prometheus.query(f"count({name})")]
        if not missing:
            return
        assert time.monotonic() < end, missing
        replay(engine, 60, seed=seed)
        restore_one(engine, seed)
        time.sleep(3.0)  # the history's batches
        prometheus.wait_until_scraped_after(time.time())


def test_what_prometheus_says_is_what_the_engine_counted(scraped: Scraped) -> None:
    counters, ask = scraped.engine.counters(), scraped.prometheus.values
    assert ask("kvcache_prompt_tokens_total") == {(): counters.prompt_tokens}
    assert ask("kvcache_lcp_tokens_total") == {(): counters.lcp_tokens}
    assert ask("kvcache_usable_tokens_total") == {(): counters.usable_tokens}
    assert ask("kvcache_replay_tokens_total") == {(): counters.replay_tokens}
    assert ask("kvcache_requests_total", "outcome") == {(k,): n for k, n in counters.by_outcome.items()}
    assert ask("sum(kvcache_requests_total)") == {(): counters.requests}
    assert ask("kvcache_transitions_total") == {(): counters.transitions}
    assert ask("sum(kvcache_commits_total)") == {(): counters.commits + sum(counters.refusals.values())}
    assert ask("kvcache_validations_total", "validation", "verdict", "reason") == counters.by_validation
    assert ask("kvcache_recoveries_total", "tier", "outcome") == counters.recoveries
    assert ask("kvcache_evictions_total", "cause", "kind") == counters.evictions
    hits = {key: tokens for key, (tokens, _) in counters.by_hit.items()}
    assert ask("kvcache_hit_tokens_total", "object_kind", "state", "tier") == hits
    asked = {(name,): tokens for name, (tokens, _) in counters.by_namespace.items()}
    assert ask("kvcache_queried_tokens_total", "namespace") == asked
    recorded = {(name,): n for name, n in scraped.engine.spans_recorded().by_name.items()}
    assert ask("kvcache_telemetry_spans_total", "span") == recorded
    assert ask("kvcache_wrong_bytes_total") == {(): 0}
    assert ask("kvcache_verified_bytes_total") == {(): counters.verified_bytes}


def test_gauges_and_histograms_are_the_engines_too(scraped: Scraped) -> None:
    stats, ask = scraped.engine.stats(), scraped.prometheus.values
    held = {(state,): n for state, n in stats["prefixes"].items() if n}
    assert {k: n for k, n in ask("kvcache_prefixes", "state").items() if n} == held
    for tier, figures in stats["tiers"].items():
        for name, n in figures.items():
            state = name.removesuffix("_bytes")
            assert ask(f'kvcache_tier_bytes{{tier="{tier}",state="{state}"}}') == {(): n}
    ratios = {(name,): pytest.approx(ratio, abs=1e-6) for name, ratio in stats["fragmentation"].items()}
    assert {k: v for k, v in ask("kvcache_fragmentation_ratio", "class").items() if k != ("all",)} == ratios
    counts = ask('kvcache_tier_io_duration_seconds_count{tier="disk"}', "direction")
    buckets = ask('kvcache_tier_io_duration_seconds_bucket{tier="disk",le="+Inf"}', "direction")
    assert counts == buckets
    assert sum(counts.values()) > 0


def test_the_history_counted_the_same_requests(scraped: Scraped) -> None:
    counters = scraped.engine.counters()
    found = scraped.prometheus.values("sum by (kind) (kvdeck_fleet_tokens_total)", "kind")
    assert found == {
        ("prompt",): counters.prompt_tokens, ("lcp",): counters.lcp_tokens,
        ("usable",): counters.usable_tokens, ("replay",): counters.replay_tokens,
    }  # fmt: skip
    assert scraped.prometheus.values('kvdeck_engines{health="live"}') == {(): 1}
    assert scraped.prometheus.values("kvdeck_leader") == {(): 1}
    assert sum(scraped.prometheus.values("kvdeck_commands", "status").values()) == 1


def test_every_instrument_is_there_under_its_names_with_help_type_and_bounded_labels(scraped: Scraped) -> None:
    text = httpx.get(f"{scraped.engine_url}/metrics", trust_env=False).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for instrument in INSTRUMENTS.values():
        for name in instrument.pulled.values():
            family = families.pop(name.removesuffix("_total"))
            assert family.documentation == instrument.meaning
            assert family.type == str(instrument.kind)
            labels = {label.name.replace(".", "_") for label in instrument.labels}
            if "" not in instrument.pulled:
                labels -= {"of"}
            plain = [s for s in family.samples if not s.name.endswith("_bucket")]
            assert {frozenset(s.labels) for s in plain} == {frozenset(labels | {"engine"})}
            if instrument.kind is not InstrumentKind.HISTOGRAM:
                assert len(family.samples) <= instrument.most_series
    assert families.keys() == {"kvcache_engine_info"}


def panels() -> list[tuple[str, str]]:
    return [(p["title"], target["expr"]) for p in BOARD["panels"] for target in p.get("targets", [])]


def filled(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


@pytest.mark.parametrize(("title", "expression"), panels(), ids=lambda text: str(text)[:60])
def test_every_query_of_the_board_finds_data(scraped: Scraped, title: str, expression: str) -> None:
    found = scraped.prometheus.query(filled(expression))
    assert found, title
    assert any(sample["value"][1] != "NaN" for sample in found), title


def test_the_boards_own_queries_work_too(scraped: Scraped) -> None:
    (engine,) = [v for v in BOARD["templating"]["list"] if v["name"] == "engine"]
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", engine["definition"]).groups()  # type: ignore[union-attr]
    assert scraped.prometheus.values(metric, label) == {("loud",): 0.0}
    for annotation in BOARD["annotations"]["list"]:
        scraped.prometheus.query(annotation["expr"])


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_every_rule_is_evaluated_over_series_that_exist(scraped: Scraped, rule: dict[str, Any]) -> None:
    scraped.prometheus.query(rule["expr"])
    bare = re.sub(r'"[^"]*"', "", rule["expr"])
    for name in set(re.findall(r"\b(?:kvcache_|kvdeck[_:]|up\b)[a-z_:0-9]*", bare)):
        assert scraped.prometheus.query(f"count({name})"), name


def test_prometheus_loaded_every_rule_and_none_is_in_error(scraped: Scraped) -> None:
    loaded = scraped.prometheus.rules()
    assert {rule["name"] for rule in loaded} == {rule.get("alert") or rule["record"] for rule in ALL_RULES}
    assert {rule["health"] for rule in loaded} == {"ok"}
    firing = {rule["name"] for rule in loaded if rule.get("state") == "firing"}
    assert "KvdeckEngineDown" not in firing
    assert "KvdeckWrongBytes" not in firing


def test_an_alert_goes_off_when_the_engine_says_so(scraped: Scraped) -> None:
    ids = [row["prefix.id"] for row in scraped.engine.snapshot()][:1]
    run(scraped.engine, "pin", prefix_ids=ids, ttl_s=60)
    scraped.engine.report_verification(10, 3)  # a caller found three wrong bytes
    end = time.monotonic() + 60
    while not scraped.prometheus.query('ALERTS{alertname="KvdeckWrongBytes",alertstate="firing"}'):
        assert time.monotonic() < end
        time.sleep(0.2)


def test_every_page_a_rule_sends_to_is_there() -> None:
    pages = re.findall(r"docs/\S+?\.md", RULES.read_text(encoding="utf-8"))
    assert pages
    assert [page for page in pages if not (DOCKER.parent / page).exists()] == []


def promtool(*arguments: str) -> None:
    program = shutil.which("promtool")
    assert program, "the tests of the rules need promtool: run `make prometheus`"
    done = subprocess.run([program, *arguments], cwd=RULES.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_the_configuration_and_the_rules_in_order() -> None:
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", RULES.name)


def test_promtool_runs_the_rules_own_tests() -> None:
    promtool("test", "rules", "kvdeck.rules.test.yml")


def test_every_alert_has_a_test_that_it_fires_and_one_that_it_is_silent() -> None:
    written = yaml.safe_load((RULES.parent / "kvdeck.rules.test.yml").read_text(encoding="utf-8"))["tests"]
    fires, silent = set(), set()
    for test in written:
        for case in test.get("promql_expr_test", []):
            for name in re.findall(r'alertname="(\w+)"', case["expr"]):
                (fires if case["exp_samples"] else silent).add(name)
    alerts = {rule["alert"] for rule in ALL_RULES if "alert" in rule}
    assert fires == silent == alerts


def test_alerts_say_what_to_do_and_how_bad_it_is() -> None:
    for rule in ALL_RULES:
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("page", "ticket")
            assert rule["annotations"].keys() == {"summary", "action"}


def test_an_engine_opens_no_port_unless_it_is_told_to(tmp_path: Path) -> None:
    before = listening()
    with engine_on_deck(SPEC, loud_config(tmp_path / "a"), url="", token="", voice=VoiceSettings()):
        assert listening() == before
    voice = VoiceSettings(metrics_port=free_port())
    with engine_on_deck(SPEC, loud_config(tmp_path / "b"), url="", token="", voice=voice):
        assert listening() - before == {f"0100007F:{voice.metrics_port:04X}"}  # 127.0.0.1 and no other address
    assert listening() == before


def listening() -> set[str]:
    """Where this process takes TCP connections."""
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text(encoding="utf-8").splitlines()[1:]]
    mine = own_inodes()
    return {row[1] for row in rows if row[3] == "0A" and row[9] in mine}


def own_inodes() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target.removeprefix("socket:[").removesuffix("]"))
    return found


def test_a_port_that_is_taken_stops_the_start_and_says_what_to_do(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        voice = VoiceSettings(metrics_port=taken.getsockname()[1])
        with (
            pytest.raises(SettingsError, match="in use") as error,
            engine_on_deck(SPEC, loud_config(tmp_path), url="", token="", voice=voice),
        ):
            pass
    assert "KVDECK_METRICS_PORT" in error.value.hint
