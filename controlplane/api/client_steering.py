"""The operator's calls that steer: commands, batches, desired state, places and labels. A part of
`ControlPlaneClient`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.api.calls import Calls, Json
from controlplane.errors import ControlPlaneError


class Unreachable(ControlPlaneError):
    """No control plane answers at this address."""

    status = 503


class SteeringCalls(Calls):
    """What a client can ask of engines."""

    # Commands

    def commands(self, **filters: Any) -> Any:
        """Commands, newest first, by `engine, status, kind, batch, limit`."""
        return self.get("/v1/commands", **filters)

    def command(self, command_id: str) -> Json:
        """One command with its progress and outcome."""
        found: Json = self.get(f"/v1/commands/{command_id}")
        return found

    def submit(
        self,
        engine: str,
        kind: str,
        arguments: Mapping[str, Any],
        *,
        reason: str,
        selector: Mapping[str, Any] | None = None,
        expires_seconds: int | None = None,
        idempotency_key: str | None = None,
        traceparent: str | None = None,
    ) -> Json:
        """Sends a command. Without a key of your own, a lost answer is tried again under one key, so it stays one."""
        body: Json = {"engine": engine, "kind": kind, "arguments": dict(arguments), "reason": reason}
        return self._once("/v1/commands", body, selector, expires_seconds, idempotency_key, traceparent)

    def submit_batch(
        self,
        kind: str,
        arguments: Mapping[str, Any],
        *,
        reason: str,
        group: str | None = None,
        selector: Mapping[str, Any] | None = None,
        selected: Mapping[str, Mapping[str, int]] | None = None,
        expires_seconds: int | None = None,
        idempotency_key: str | None = None,
        traceparent: str | None = None,
    ) -> Json:
        """Sends a command to each engine of a group, or (None) of the fleet, as `submit` does."""
        body: Json = {"group": group, "kind": kind, "arguments": dict(arguments), "reason": reason}
        if selected is not None:
            body["selected"] = {engine: dict(versions) for engine, versions in selected.items()}
        return self._once("/v1/batches", body, selector, expires_seconds, idempotency_key, traceparent)

    def batch(self, batch_id: str) -> Json:
        """The commands of one request."""
        found: Json = self.get(f"/v1/batches/{batch_id}")
        return found

    def preview(
        self, engine: str, kind: str, arguments: Mapping[str, Any], selector: Mapping[str, Any] | None = None
    ) -> Json:
        """The blast radius of a command."""
        body = {"engine": engine, "kind": kind, "arguments": dict(arguments), "selector": selector}
        return self._post("/v1/commands/preview", body)

    def preview_batch(
        self,
        kind: str,
        arguments: Mapping[str, Any],
        *,
        group: str | None = None,
        selector: Mapping[str, Any] | None = None,
    ) -> Json:
        """The blast radius on every engine of a group, or of the fleet."""
        body = {"group": group, "kind": kind, "arguments": dict(arguments), "selector": selector}
        return self._post("/v1/batches/preview", body)

    def cancel(self, command_id: str, *, reason: str) -> Json:
        """Stops a command: at once if no engine has taken it, else at its next step."""
        return self._post(f"/v1/commands/{command_id}/cancel", {"reason": reason})

    def cancel_batch(self, batch_id: str, *, reason: str) -> Json:
        """Stops every command of a batch that is not over."""
        return self._post(f"/v1/batches/{batch_id}/cancel", {"reason": reason})

    # Desired state

    def desired(self, **filters: Any) -> Any:
        """Revisions of desired state, newest first, by `engine, group, limit`."""
        return self.get("/v1/desired", **filters)

    def in_force(self, engine: str) -> Json:
        """What one engine should run with, which documents say so, and what it runs with."""
        found: Json = self.get(f"/v1/desired/engines/{engine}")
        return found

    def set_desired(
        self,
        changes: Mapping[str, Any],
        *,
        reason: str,
        engine: str | None = None,
        group: str | None = None,
        expect_revision: int | None = None,
        traceparent: str | None = None,
    ) -> Json:
        """Changes caps, mode or knobs of an engine, a group, or (neither) the fleet -> `{revision, document, diff}`."""
        body = {"engine": engine, "group": group, "changes": dict(changes), "reason": reason}
        return self._post("/v1/desired", {**body, "expect_revision": expect_revision}, traceparent)

    def try_desired(
        self,
        *,
        changes: Mapping[str, Any] | None = None,
        revision: int | None = None,
        engine: str | None = None,
        group: str | None = None,
        ask: bool = False,
    ) -> Json:
        """What a change, or a rollback, would write and evict; `ask`: the engines themselves are asked too."""
        body = {"engine": engine, "group": group, "changes": changes, "revision": revision, "ask": ask}
        return self._post("/v1/desired/try", body)

    def rollback(self, revision: int, *, reason: str, engine: str | None = None, group: str | None = None) -> Json:
        """Makes an earlier revision's document the newest; 0 is before the first of the scope."""
        body = {"revision": revision, "reason": reason, "engine": engine, "group": group}
        return self._post("/v1/desired/rollback", body)

    # Places and labels

    def place(
        self, engine: str, *, reason: str, group: str | None = None, labels: Mapping[str, str | None] | None = None
    ) -> Json:
        """Sets an engine's group ("": none) and labels (None: take away)."""
        body = {"reason": reason, "group": group, "labels": dict(labels or {})}
        return self._post(f"/v1/engines/{engine}/place", body)

    def forget(self, engine: str, *, reason: str) -> Json:
        """Takes an engine that left out of the lists."""
        return self._post(f"/v1/engines/{engine}/forget", {"reason": reason})

    def label(self, prefix_ids: Sequence[str], labels: Mapping[str, str | None], *, reason: str) -> Json:
        """Sets labels on prefixes -> prefix -> all its labels."""
        body = {"prefix_ids": list(prefix_ids), "labels": dict(labels), "reason": reason}
        return self._post("/v1/prefixes/labels", body)

    def _once(
        self,
        path: str,
        body: Json,
        selector: Mapping[str, Any] | None,
        expires_seconds: int | None,
        idempotency_key: str | None,
        traceparent: str | None,
    ) -> Json:
        body["idempotency_key"] = idempotency_key or secrets.token_hex(16)
        if selector is not None:
            body["selector"] = dict(selector)
        if expires_seconds is not None:
            body["expires_s"] = expires_seconds
        try:
            return self._post(path, body, traceparent)
        except Unreachable:
            return self._post(path, body, traceparent)
