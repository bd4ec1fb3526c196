"""docs/reference/api.md: every call, who may make it, the command that makes it. A test compares it with both sides."""

from __future__ import annotations

from collections.abc import Mapping

VERBS: Mapping[str, str] = {
    "overview": "status",
    "engines": "status",
    "prefixes": "prefixes",
    "prefix": "explain PREFIX",
    "failures": "failures",
    "validations": "failures",
    "damaged": "damaged",
    "series": "series requests",
    "marks": "marks",
    "desired": "desired history",
    "commands": "commands",
    "command": "command COMMAND",
    "audit_rows": "audit",
    "submit_command": "evict PREFIX",
    "preview_command": "evict PREFIX --dry-run",
    "cancel_command": "cancel COMMAND",
    "place_engine": "engine-place ENGINE --group canary",
    "forget_engine": "engine-forget ENGINE",
    "label_prefixes": "label PREFIX team=search",
    "submit_batch": "compact --fleet",
    "preview_batch": "evict --fleet --least-useful 1 --dry-run",
    "batch": "compact --fleet",
    "cancel_batch": "cancel BATCH --batch",
    "in_force": "desired show",
    "revise_desired": "cap --prefixes 900",
    "try_desired": "cap --prefixes 900 --dry-run",
    "rollback_desired": "desired rollback REVISION",
    "policies": "policy list",
    "policy_kinds": "policy kinds",
    "policy_runs": "policy history",
    "policy": "policy show degrade",
    "policy_why": "policy why degrade",
    "create_policy": "policy add mornings warmup",
    "run_policy": "policy run degrade --dry-run",
    "remove_policy": "policy remove mornings",
    "change_policy": "policy set degrade --every 20",
    "alerts": "alert list",
    "alert": "alert show ALERT",
    "acknowledge_alert": "alert ack ALERT",
    "alert_rules": "alert rules",
    "rule_kinds": "alert kinds",
    "alert_rule": "alert rule engine_silent",
    "create_alert_rule": "alert add-rule quiet silence --above 9 --resolve-at 1",
    "change_alert_rule": "alert set-rule engine_silent --above 99",
    "remove_alert_rule": "alert remove-rule quiet",
    "list_silences": "alert silences",
    "create_silence": "alert silence --until 1h --rule engine_silent",
    "remove_silence": "alert unsilence SILENCE",
    "list_receivers": "alert receivers",
    "create_receiver": "alert add-receiver chat https://chat.example/hook",
    "change_receiver": "alert set-receiver chat --off",
    "remove_receiver": "alert remove-receiver chat",
    "notifications": "alert deliveries",
    "inbound_alerts": "alert inbound",
    "losses": "explain",
    "namespaces": "top --once",
    "requests": "explain PREFIX",
    "doctor": "doctor",
    "whatif": "whatif --engine ENGINE",
    "outcomes": "whatif --outcomes --engine ENGINE",
}
"""Call -> a command line that makes it. Words in capitals stand for ids. A test runs each and looks for the call."""
NO_VERB: Mapping[str, str] = {
    "open_session": "the link of `kvdeck token link`",
    "open_oidc_session": "the dashboard's sign-in",
    "me": "the dashboard",
    "losses_by_minute": "scripts",
    "receive_traces": "engines",
    "receive_metrics": "engines",
    "register": "the agent of an engine",
    "heartbeat": "the agent of an engine",
    "goodbye": "the agent of an engine",
    "poll": "the agent of an engine",
    "outcome": "the agent of an engine",
    "curve": "the agent of an engine",
    "snapshot": "the agent of an engine",
    "healthz": "load balancers",
    "metrics": "Prometheus",
    "receive_alertmanager": "Alertmanager",
}
"""Call -> who makes it, where no person does."""


def page() -> str:
    """The page, from the routes."""
    from controlplane.api.app import ROUTERS
    from controlplane.api.openapi import ANY_TOKEN, ANYONE, calls_of
    from controlplane.auth import Role

    roles = ", ".join(role.word for role in sorted(Role) if role is not Role.ENGINE)
    lines = [
        "# API",
        "",
        f"Roles of people, each with all of those before it: {roles}. `engine` is apart: it speaks for",
    ]
    lines += ["engines and reads nothing of people. `any` is any token, `none` no token at all. Bodies, answers and"]
    lines += ["examples: `/docs` and `/openapi.json` of a running control plane. Tokens and what guards them:"]
    lines += ["[security](../howto/security.md). A read that names an engine answers 404 `engine_unknown` if none ever"]
    lines += ["registered under that name.", ""]
    lines += ["| call | role | what | on the command line, or by whom |", "|---|---|---|---|"]
    assert {ANY_TOKEN, ANYONE} == {"any", "none"}
    for call in calls_of(ROUTERS):
        by = f"`kvdeck {VERBS[call.name]}`" if call.name in VERBS else NO_VERB[call.name]
        lines.append(f"| `{call.method} {call.path}` | {call.role} | {call.summary} | {by} |")
    return "\n".join([*lines, ""])
