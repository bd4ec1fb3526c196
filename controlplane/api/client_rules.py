"""The operator's calls about policies and alerts: a part of `ControlPlaneClient`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.api.calls import Calls, Json


class RuleCalls(Calls):
    """What a client can ask and change of standing rules."""

    # Policies

    def policies(self) -> Any:
        """Standing policies."""
        return self.get("/v1/policies")

    def policy(self, name: str) -> Any:
        """One policy with its newest runs."""
        return self.get(f"/v1/policies/{name}")

    def policy_kinds(self) -> Any:
        """Kinds of policies and their parameters."""
        return self.get("/v1/policies/kinds")

    def policy_runs(self, **filters: Any) -> Any:
        """What policies decided, by `policy`, `engine`, `acted`, `limit`."""
        return self.get("/v1/policies/runs", **filters)

    def policy_why(self, name: str, *, at: str | None = None, engine: str | None = None) -> Any:
        """What a policy had decided at a moment, and why."""
        return self.get(f"/v1/policies/{name}/why", at=at, engine=engine)

    def add_policy(self, name: str, kind: str, *, reason: str, **wanted: Any) -> Json:
        """Adds a policy: `parameters`, `every_seconds` or `cron` with `time_zone`, `scope`, `paused`."""
        return self._post("/v1/policies", {"name": name, "kind": kind, "reason": reason, **wanted})

    def run_policy(self, name: str, *, reason: str, dry_run: bool = False) -> Json:
        """Runs a policy now -> `{runs: [...]}`."""
        return self._post(f"/v1/policies/{name}/run", {"reason": reason, "dry_run": dry_run})

    def change_policy(self, name: str, *, reason: str, **changes: Any) -> Json:
        """Changes what `add_policy` sets, and `paused_until`."""
        return self._post(f"/v1/policies/{name}", {"reason": reason, **changes})

    def remove_policy(self, name: str, *, reason: str) -> Json:
        """Removes a policy that somebody created."""
        return self._post(f"/v1/policies/{name}/remove", {"reason": reason})

    # Alerts

    def alerts(self, **filters: Any) -> Any:
        """Alerts, newest first."""
        return self.get("/v1/alerts", **filters)

    def alert(self, alert_id: int) -> Any:
        """One alert, its rule, and who was told."""
        return self.get(f"/v1/alerts/{alert_id}")

    def acknowledge(self, alert_id: int, *, reason: str = "acknowledged") -> Json:
        """Says that somebody looks after an alert."""
        return self._post(f"/v1/alerts/{alert_id}/acknowledge", {"reason": reason})

    def rules(self) -> Any:
        """Alert rules."""
        return self.get("/v1/alert-rules")

    def rule_kinds(self) -> Any:
        """Kinds of rules and their parameters."""
        return self.get("/v1/alert-rules/kinds")

    def rule(self, name: str) -> Any:
        """One alert rule."""
        return self.get(f"/v1/alert-rules/{name}")

    def add_rule(self, name: str, *, reason: str, **wanted: Any) -> Json:
        """Adds an alert rule: `kind`, `title`, `above`, `resolve_at` and more."""
        return self._post("/v1/alert-rules", {"name": name, "reason": reason, **wanted})

    def change_rule(self, name: str, *, reason: str, **changes: Any) -> Json:
        """Changes an alert rule, or `enabled`."""
        return self._post(f"/v1/alert-rules/{name}", {"reason": reason, **changes})

    def remove_rule(self, name: str, *, reason: str) -> Json:
        """Removes an alert rule that somebody created."""
        return self._post(f"/v1/alert-rules/{name}/remove", {"reason": reason})

    def silences(self, **filters: Any) -> Any:
        """Silences that hold; `everything`: all."""
        return self.get("/v1/silences", **filters)

    def silence(self, matchers: Mapping[str, str], *, until: str, reason: str) -> Json:
        """Tells nobody of what matches until then (RFC 3339)."""
        return self._post("/v1/silences", {"matchers": dict(matchers), "until": until, "reason": reason})

    def unsilence(self, silence_id: int, *, reason: str) -> Json:
        """Ends a silence."""
        return self._post(f"/v1/silences/{silence_id}/remove", {"reason": reason})

    def receivers(self) -> Any:
        """Who is told."""
        return self.get("/v1/receivers")

    def add_receiver(self, name: str, url: str, *, reason: str, **wanted: Any) -> Json:
        """Adds a webhook: `secret`, `least_severity`, `timeout_seconds`."""
        return self._post("/v1/receivers", {"name": name, "url": url, "reason": reason, **wanted})

    def change_receiver(self, name: str, *, reason: str, **changes: Any) -> Json:
        """Changes a webhook, or `enabled`."""
        return self._post(f"/v1/receivers/{name}", {"reason": reason, **changes})

    def remove_receiver(self, name: str, *, reason: str) -> Json:
        """Removes a webhook."""
        return self._post(f"/v1/receivers/{name}/remove", {"reason": reason})

    def notifications(self, **filters: Any) -> Any:
        """What receivers were told, by `receiver`, `status`, `limit`."""
        return self.get("/v1/notifications", **filters)

    def inbound_alerts(self, **filters: Any) -> Any:
        """Alerts that asked for a policy, and what came of them, by `limit`."""
        return self.get("/v1/alertmanager", **filters)

    def alertmanager(self, payload: Mapping[str, Any]) -> Json:
        """Hands in an Alertmanager payload."""
        return self._post("/v1/alertmanager", payload)
