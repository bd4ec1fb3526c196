"""The doctor's rules about single engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from controlplane.insight.doctor_facts import DeckFacts, EngineFacts
from controlplane.insight.doctor_rule import GIB, Found, Rule, Severity
from controlplane.wording import seconds_text

LEAST_PROMPT_TOKENS = 20_000
LOST_SHARE = 0.05
GAIN_POINTS = 3.0


def _wrong_bytes(engine: EngineFacts) -> Iterator[Found]:
    if wrong := engine.now.stats.get("wrong_bytes", 0):
        yield Found(
            engine_id=engine.id,
            summary=f"{wrong:,} loaded bytes differed from the truth",
            evidence={"wrong_bytes": wrong, "verified_bytes": engine.now.stats.get("verified_bytes")},
        )


def _silent(engine: EngineFacts) -> Iterator[Found]:
    if engine.now.health in ("stale", "unreachable"):
        yield Found(
            engine_id=engine.id,
            summary=f"no word for {seconds_text(engine.now.last_seen_seconds)}",
            evidence={"health": engine.now.health, "last_seen_seconds": round(engine.now.last_seen_seconds, 1)},
            since=engine.now.last_seen_at,
            severity=Severity.SEVERE if engine.now.health == "unreachable" else Severity.WARNING,
        )


def _breaker(engine: EngineFacts) -> Iterator[Found]:
    for tier, io in engine.now.stats.get("io", {}).items():
        if io.get("breaker") == "open":
            yield Found(
                engine_id=engine.id,
                summary=f"the breaker of tier {tier} is open: nothing is restored from it",
                evidence={"tier": tier, "retries": io.get("retries"), "stuck": io.get("stuck")},
            )


FAILED_RESTORES = 0.2
LEAST_RESTORES = 10


def _restores(engine: EngineFacts) -> Iterator[Found]:
    if engine.recoveries >= LEAST_RESTORES and engine.failed_recoveries / engine.recoveries >= FAILED_RESTORES:
        share = engine.failed_recoveries / engine.recoveries
        yield Found(
            engine_id=engine.id,
            summary=f"{share:.0%} of {engine.recoveries:,} restores failed or came late",
            evidence={"recoveries": engine.recoveries, "failed_or_late": engine.failed_recoveries},
        )


QUARANTINED_SHARE = 0.05


def _quarantine(engine: EngineFacts) -> Iterator[Found]:
    prefixes = engine.now.stats.get("prefixes", {})
    held, total = prefixes.get("QUARANTINED", 0), sum(prefixes.values())
    if held:
        filling = held / total >= QUARANTINED_SHARE
        yield Found(
            engine_id=engine.id,
            summary=f"{held:,} of {total:,} prefixes are quarantined",
            evidence={"quarantined": held, "prefixes": total, "share": round(held / total, 4)},
            severity=Severity.SEVERE if filling else Severity.WARNING,
        )


SLOW_SECONDS, SLOW_TIMES, LEAST_IOS = 0.1, 10.0, 20


def _slow_disk(engine: EngineFacts) -> Iterator[Found]:
    for io in engine.io:
        slow = io.p99_seconds >= max(SLOW_SECONDS, SLOW_TIMES * io.p50_seconds)
        if io.tier == "disk" and io.count >= LEAST_IOS and slow:
            yield Found(
                engine_id=engine.id,
                summary=f"1 in 100 disk {io.direction}s takes {io.p99_seconds:.2f} s or more, the middle one "
                f"{io.p50_seconds * 1000:.1f} ms",
                evidence={"direction": io.direction, "count": io.count, "p50_seconds": io.p50_seconds,
                          "p99_seconds": io.p99_seconds},
            )  # fmt: skip


def _lost(engine: EngineFacts, causes: tuple[str, ...]) -> tuple[int, float]:
    """Tokens lost to these causes, and their share of the prompts'; zeros while there are too few to tell."""
    if engine.why.prompt_tokens < LEAST_PROMPT_TOKENS:
        return 0, 0.0
    tokens = sum(row.tokens for row in engine.why.rows if row.cause in causes)
    return tokens, tokens / engine.why.prompt_tokens


def _caps(engine: EngineFacts) -> Iterator[Found]:
    curve = engine.curve
    if curve is None:
        return
    gain = (curve.better_ratio - curve.hit_ratio) * 100
    if gain >= GAIN_POINTS and curve.better_bytes > curve.cap_bytes:
        more = (curve.better_bytes - curve.cap_bytes) / GIB
        yield Found(
            engine_id=engine.id,
            summary=f"{gain:.1f} points of hit rate to gain by {more:,.2f} GiB more",
            evidence={"hit_ratio": round(curve.hit_ratio, 4), "better_ratio": round(curve.better_ratio, 4),
                      "cap_bytes": curve.cap_bytes, "better_bytes": curve.better_bytes, "samples": curve.samples},
            advice=f"`kvdeck whatif --engine {engine.id}` shows the curve; then "
            f"`kvdeck cap --engine {engine.id} --gpu {curve.better_bytes}`.",
        )  # fmt: skip


def _checkpoints(engine: EngineFacts) -> Iterator[Found]:
    tokens, share = _lost(engine, ("checkpoint_missing", "replay_refused"))
    if share >= LOST_SHARE:
        ratio = engine.now.observed.get("checkpoint_budget_ratio")
        yield Found(
            engine_id=engine.id,
            summary=f"{share:.1%} of prompt tokens were known, but had no checkpoint to resume from",
            evidence={"tokens": tokens, "prompt_tokens": engine.why.prompt_tokens, "checkpoint_budget_ratio": ratio},
        )


def _namespace_caps(engine: EngineFacts) -> Iterator[Found]:
    tokens, share = _lost(engine, ("evicted_namespace",))
    if share >= LOST_SHARE:
        yield Found(
            engine_id=engine.id,
            summary=f"{share:.1%} of prompt tokens were evicted by their namespace's own maximum",
            evidence={"tokens": tokens, "prompt_tokens": engine.why.prompt_tokens},
        )


LEAST_THRASHED, THRASHED_SHARE = 20, 0.25


def _thrashing(engine: EngineFacts) -> Iterator[Found]:
    for thrash in engine.thrash:
        if thrash.came_back >= LEAST_THRASHED and thrash.came_back / thrash.evicted >= THRASHED_SHARE:
            yield Found(
                engine_id=engine.id,
                summary=f"{thrash.came_back:,} of {thrash.evicted:,} prefixes that namespace {thrash.namespace!r} lost "
                "were made again within 5 minutes",
                evidence={"namespace": thrash.namespace, "evicted": thrash.evicted, "came_back": thrash.came_back},
                advice=f"Let it hold more: `kvdeck cap --namespace {thrash.namespace} --max BYTES`; or keep only what "
                "comes twice: `kvdeck cap --admission second_touch`.",
            )


def _dropped(engine: EngineFacts) -> Iterator[Found]:
    if engine.dropped_spans:
        yield Found(
            engine_id=engine.id,
            summary=f"{engine.dropped_spans:,} spans were dropped before they were sent",
            evidence={"dropped_spans": engine.dropped_spans},
        )


def _gaps(engine: EngineFacts) -> Iterator[Found]:
    if engine.now.open_gaps:
        yield Found(
            engine_id=engine.id,
            summary=f"open holes in the history of prefixes: {engine.now.open_gaps:,}",
            evidence={"open_gaps": engine.now.open_gaps},
            since=engine.oldest_gap_at,
        )


SKEW_SECONDS = 5.0


def _clock(engine: EngineFacts) -> Iterator[Found]:
    ahead = engine.clock_ahead_seconds
    if engine.now.health == "live" and ahead is not None and abs(ahead) > SKEW_SECONDS:
        word = "ahead" if ahead > 0 else "behind"
        yield Found(
            engine_id=engine.id,
            summary=f"its clock is {abs(ahead):,.1f} s {word}",
            evidence={"ahead_seconds": round(ahead, 1)},
        )


def _mode(engine: EngineFacts) -> Iterator[Found]:
    mode = engine.now.observed.get("mode", "normal")
    if mode != "normal":
        tokens, share = _lost(engine, ("mode",))
        yield Found(
            engine_id=engine.id,
            summary=f"runs in mode {mode}, which cost {share:.1%} of prompt tokens",
            evidence={"mode": mode, "tokens": tokens},
        )


def _each(look: Callable[[EngineFacts], Iterable[Found]]) -> Callable[[DeckFacts], Iterator[Found]]:
    """A rule about single engines, as one about the deck."""

    def looked(facts: DeckFacts) -> Iterator[Found]:
        for engine in facts.engines:
            yield from look(engine)

    return looked


ENGINE_RULES: tuple[Rule, ...] = (
    Rule(
        name="wrong_bytes", severity=Severity.SEVERE, look=_each(_wrong_bytes),
        looks_for="loaded bytes that a caller compared with the truth, and that differed",
        advice="Stop reuse now: `kvdeck mode bypass`. Then `kvdeck scrub`, and tell us.",
    ),
    Rule(
        name="engine_silent", severity=Severity.SEVERE, look=_each(_silent),
        looks_for="an engine without a word for KVDECK_ENGINE_STALE_SECONDS (warning) or "
        "KVDECK_ENGINE_UNREACHABLE_SECONDS (severe)",
        advice="Look at its process and its network; `kvdeck status` shows what it last said.",
    ),
    Rule(
        name="breaker_open", severity=Severity.SEVERE, look=_each(_breaker),
        looks_for="a tier whose circuit breaker is open",
        advice="Look at the device; until it is well, `kvdeck mode no_disk`.",
    ),
    Rule(
        name="restores_failing", severity=Severity.SEVERE, look=_each(_restores),
        looks_for=f"{FAILED_RESTORES:.0%} or more of at least {LEAST_RESTORES} restores that failed or came late",
        advice="`kvdeck explain --since 1h` says why; `kvdeck scrub` finds damage.",
    ),
    Rule(
        name="quarantine_filling", severity=Severity.WARNING, look=_each(_quarantine),
        looks_for=f"quarantined prefixes; severe from {QUARANTINED_SHARE:.0%} of all",
        advice="`kvdeck quarantine` lists what was damaged; look at the disk, then evict: `kvdeck evict ID`.",
    ),
    Rule(
        name="disk_slow", severity=Severity.WARNING, look=_each(_slow_disk),
        looks_for=f"p99 of at least {LEAST_IOS} disk reads or writes of {SLOW_SECONDS:g} s and {SLOW_TIMES:.0f} times "
        "their middle or more: restores are estimated by the middle, and so come late",
        advice="Look for who else uses the disk; until then warm what matters: `kvdeck warm ID`.",
    ),
    Rule(
        name="caps_too_small", severity=Severity.WARNING, look=_each(_caps),
        looks_for=f"a curve (from 2,000 samples) that gives {GAIN_POINTS:g} points of hit rate or more at a larger cap",
        advice="`kvdeck whatif`.",
    ),
    Rule(
        name="checkpoints_missing", severity=Severity.WARNING, look=_each(_checkpoints),
        looks_for=f"{LOST_SHARE:.0%} of prompt tokens or more that were known and had no checkpoint",
        advice="Give checkpoints a larger share: `kvdeck cap --checkpoints 0.4`.",
    ),
    Rule(
        name="namespace_maximum", severity=Severity.WARNING, look=_each(_namespace_caps),
        looks_for=f"{LOST_SHARE:.0%} of prompt tokens or more lost to the maximum of their own namespace",
        advice="`kvdeck explain --since 1h --namespace NAME`; then `kvdeck cap --namespace NAME --max BYTES`.",
    ),
    Rule(
        name="namespace_thrashing", severity=Severity.WARNING, look=_each(_thrashing),
        looks_for=f"{LEAST_THRASHED} evicted prefixes of a namespace or more, and {THRASHED_SHARE:.0%} of all it lost, "
        "that were made again within 5 minutes",
        advice="`kvdeck cap --namespace NAME --max BYTES`.",
    ),
    Rule(
        name="telemetry_dropped", severity=Severity.WARNING, look=_each(_dropped),
        looks_for="spans dropped by a full ring (never a transition or a failure)",
        advice="The engine's exporters are too slow: look at the control plane's load, or raise ring_capacity.",
    ),
    Rule(
        name="history_gaps", severity=Severity.WARNING, look=_each(_gaps),
        looks_for="holes in the history of prefixes that no snapshot has closed yet",
        advice="They close by themselves with the next snapshot; if they stay, `kvdeck status` shows whether it lives.",
    ),
    Rule(
        name="clock_skew", severity=Severity.WARNING, look=_each(_clock),
        looks_for=f"an engine's clock, as its heartbeats say it, {SKEW_SECONDS:.0f} s or more ahead of ours or behind",
        advice="Synchronise the clocks of the machines: minutes and alerts are made of engine times.",
    ),
    Rule(
        name="mode_degraded", severity=Severity.NOTICE, look=_each(_mode),
        looks_for="an engine in another mode than normal",
        advice="`kvdeck mode normal` once the reason is gone.",
    ),
)  # fmt: skip
