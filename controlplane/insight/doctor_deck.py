"""The doctor's rules about the deck: what was asked of engines, commands, policies, the leader and the database."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from controlplane.ingest.facts import REASONS
from controlplane.insight.doctor_facts import DeckFacts, EngineFacts
from controlplane.insight.doctor_rule import GIB, Found, Rule, Severity


def _unobserved(engine: EngineFacts, least_seconds: float, at: dt.datetime) -> Iterator[Found]:
    now = engine.now
    if engine.behind_since is not None and (at - engine.behind_since).total_seconds() > least_seconds:
        yield Found(
            engine_id=engine.id,
            summary=f"runs revision {now.observed_revision}, revision {now.desired_revision} was asked for",
            evidence={"observed_revision": now.observed_revision, "desired_revision": now.desired_revision},
            since=engine.behind_since,
        )
    if error := now.observed.get("error"):
        yield Found(
            engine_id=engine.id,
            summary=f"refused revision {now.desired_revision}: {error}",
            evidence={"desired_revision": now.desired_revision, "error": str(error)},
            severity=Severity.SEVERE,
        )


UNOBSERVED_SECONDS = 60.0


def _desired(facts: DeckFacts) -> Iterator[Found]:
    for engine in facts.engines:
        if engine.now.health == "live":  # a silent one has a finding of its own
            yield from _unobserved(engine, UNOBSERVED_SECONDS, facts.at)


def _commands(facts: DeckFacts) -> Iterator[Found]:
    for failed in facts.commands:
        said = f": {failed.said}" if failed.said else ""
        yield Found(
            engine_id=failed.engine_id,
            summary=f"commands {failed.status}: {failed.count:,} {failed.kind}{said}",
            evidence={"kind": failed.kind, "status": failed.status, "count": failed.count, "said": failed.said},
            since=failed.last_at,
        )


def _policies_failing(facts: DeckFacts) -> Iterator[Found]:
    for policy in facts.policies:
        if policy.failures_in_a_row and not policy.paused:
            yield Found(
                summary=f"policy {policy.name} raised in its last {policy.failures_in_a_row} runs: {policy.error}",
                evidence={"policy": policy.name, "failures_in_a_row": policy.failures_in_a_row},
                since=policy.last_run_at,
            )


def _policies_paused(facts: DeckFacts) -> Iterator[Found]:
    for policy in facts.policies:
        if policy.paused:
            until = f"until {policy.paused_until:%m-%d %H:%M}" if policy.paused_until else "until somebody resumes it"
            yield Found(
                summary=f"policy {policy.name} is paused {until}",
                evidence={"policy": policy.name},
                since=policy.changed_at,
                advice=f"`kvdeck policy resume {policy.name}`.",
            )


LEADER_SILENT_SECONDS = 90


def _leader(facts: DeckFacts) -> Iterator[Found]:
    """A leader says that it leads every few seconds, also when its policies find nothing to do."""
    store = facts.store
    said = store.leader_seen_at
    if said is not None and (facts.at - said).total_seconds() > LEADER_SILENT_SECONDS:
        yield Found(
            summary=f"no control plane leads, so no policy runs and no alert begins (last: {store.leader})",
            evidence={"epoch": store.epoch, "last_leader": store.leader, "leads_since": str(store.leads_since)},
            since=said,
        )


def _refused(facts: DeckFacts) -> Iterator[Found]:
    for refused in facts.refused:
        if refused.last_at >= facts.window.since:
            why = REASONS.get(refused.reason, refused.reason)
            yield Found(
                summary=f"{refused.count:,} {refused.of} were refused since this control plane began: {why}",
                evidence={"of": refused.of, "reason": refused.reason, "count": refused.count},
                since=refused.last_at,
            )


LARGE_BYTES = {"sqlite": 8 * GIB, "postgresql": 64 * GIB}


def _database(facts: DeckFacts) -> Iterator[Found]:
    for table, oldest in facts.store.overdue.items():
        yield Found(
            summary=f"{table} has rows from {oldest:%Y-%m-%d %H:%M}, twice as old as they are kept",
            evidence={"table": table},
            since=oldest,
            advice="`kvdeck policy run retention --reason doctor`; see whether the policy is paused.",
        )
    size = facts.store.size_bytes
    if size is not None and size >= LARGE_BYTES.get(facts.store.dialect, 0):
        yield Found(
            summary=f"the {facts.store.dialect} database has {size / GIB:,.1f} GiB",
            evidence={"size_bytes": size},
        )


DECK_RULES: tuple[Rule, ...] = (
    Rule(
        name="desired_unobserved", severity=Severity.WARNING, look=_desired,
        looks_for=f"a live engine that has not applied a revision for {UNOBSERVED_SECONDS:.0f} s; one that refused it "
        "is severe",
        advice="`kvdeck status` shows the reason; `kvdeck cap --rollback REVISION` goes back.",
    ),
    Rule(
        name="commands_failed", severity=Severity.WARNING, look=_commands,
        looks_for="commands that failed, were refused or expired",
        advice="`kvdeck status`; the dashboard's Audit page has the command with its outcome.",
    ),
    Rule(
        name="policy_failing", severity=Severity.WARNING, look=_policies_failing,
        looks_for="a policy whose newest runs raised",
        advice="`kvdeck policy list` shows it; its parameters or an engine's answer are wrong.",
    ),
    Rule(
        name="policy_paused", severity=Severity.NOTICE, look=_policies_paused,
        looks_for="a policy that somebody paused",
        advice="`kvdeck policy resume NAME`.",
    ),
    Rule(
        name="leader_missing", severity=Severity.SEVERE, look=_leader,
        looks_for=f"a leader that has not said for {LEADER_SILENT_SECONDS} s that it leads",
        advice="Start a control plane (`kvdeck serve`); with several, look at the database's locks.",
    ),
    Rule(
        name="telemetry_refused", severity=Severity.WARNING, look=_refused,
        looks_for="spans, points or whole exports that could not be used, by reason",
        advice="The control plane's log names the field; engines of another version, or a clock that is a day off?",
    ),
    Rule(
        name="database_growing", severity=Severity.WARNING, look=_database,
        looks_for="rows twice as old as they are kept, or 8 GiB of SQLite, 64 GiB of Postgres",
        advice="Keep less: KVDECK_KEEP_HISTORY_DAYS, KVDECK_KEEP_REQUESTS_HOURS; or move to Postgres.",
    ),
)  # fmt: skip
