"""docs/reference/api.md: every call, who may make it, the verb that makes it. A test compares it with both sides."""

from __future__ import annotations

from collections.abc import Mapping

VERBS: Mapping[str, str] = {
    "open_session": "token link",
    "me": "status",
    "overview": "status",
    "engines": "status",
    "prefixes": "prefixes",
    "prefix": "explain",
    "failures": "explain",
    "validations": "explain",
    "damaged": "prefixes",
    "series": "top",
    "marks": "commands",
    "desired": "desired history",
    "commands": "commands",
    "command": "command",
    "audit_rows": "commands",
    "submit_command": "evict",
    "preview_command": "evict",
    "cancel_command": "cancel",
    "place_engine": "engine-place",
    "forget_engine": "engine-forget",
    "label_prefixes": "label",
    "submit_batch": "evict",
    "preview_batch": "evict",
    "batch": "commands",
    "cancel_batch": "cancel",
    "in_force": "desired show",
    "revise_desired": "cap",
    "try_desired": "cap",
    "rollback_desired": "desired rollback",
    "policies": "policy list",
    "policy_kinds": "policy kinds",
    "policy_runs": "policy history",
    "policy": "policy show",
    "policy_why": "policy why",
    "create_policy": "policy add",
    "run_policy": "policy run",
    "remove_policy": "policy remove",
    "change_policy": "policy set",
    "alerts": "alert list",
    "alert": "alert show",
    "acknowledge_alert": "alert ack",
    "alert_rules": "alert rules",
    "rule_kinds": "alert add-rule",
    "alert_rule": "alert rule",
    "create_alert_rule": "alert add-rule",
    "change_alert_rule": "alert set-rule",
    "remove_alert_rule": "alert remove-rule",
    "list_silences": "alert silences",
    "create_silence": "alert silence",
    "remove_silence": "alert unsilence",
    "list_receivers": "alert receivers",
    "create_receiver": "alert add-receiver",
    "change_receiver": "alert set-receiver",
    "remove_receiver": "alert remove-receiver",
    "notifications": "alert deliveries",
    "inbound_alerts": "policy history",
    "losses": "explain",
    "losses_by_minute": "explain",
    "namespaces": "explain",
    "requests": "explain",
    "doctor": "doctor",
    "whatif": "whatif",
    "outcomes": "whatif",
}
"""Call -> the verb that makes it, or shows the same."""
NO_VERB: Mapping[str, str] = {
    "open_oidc_session": "the dashboard's sign-in",
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
    lines += ["[security](../howto/security.md).", ""]
    lines += ["| call | role | what | on the command line, or by whom |", "|---|---|---|---|"]
    assert {ANY_TOKEN, ANYONE} == {"any", "none"}
    for call in calls_of(ROUTERS):
        by = f"`kvdeck {VERBS[call.name]}`" if call.name in VERBS else NO_VERB[call.name]
        lines.append(f"| `{call.method} {call.path}` | {call.role} | {call.summary} | {by} |")
    return "\n".join([*lines, ""])
