"""How a game day sees and touches a deck: by the calls of the API that a person has, and nothing else."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from controlplane.api.client import ControlPlaneClient, Unreachable
from controlplane.clock import utc_now
from controlplane.errors import Unavailable
from controlplane.workload.gameday import FaultIncident, OutageIncident, Tuning
from controlplane.workload.gameday_signs import Reading

CAPS = ("cap_gpu_bytes", "cap_host_bytes")
LOOKED_AT = 10  # prefixes whose history is read version by version
COMMAND_SECONDS = 20
Undo = dict[str, Any]


class OutageLine(ControlPlaneClient):
    """The line to a `kvdeck up --game-days`; the address and the errors are as those of a control plane."""

    def begin(self, part: str, seconds: int, *, reason: str) -> None:
        """Orders an outage."""
        self._post("/v1/outage", {"part": part, "seconds": seconds, "reason": reason})

    def end(self, *, reason: str) -> None:
        """Ends the one that runs, if any."""
        self._post("/v1/outage/end", {"reason": reason})


class Deck:
    """One engine of a deck, through its control plane; `outages` is the line to the `kvdeck up` that runs it."""

    def __init__(
        self,
        client: ControlPlaneClient,
        engine_id: str,
        *,
        reason: str,
        outages: OutageLine | None = None,
        clock: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        self._client = client
        self._outages = outages
        self._clock = clock
        self._since = (clock() - dt.timedelta(minutes=1)).replace(second=0, microsecond=0)
        self.engine_id = engine_id
        self.reason = reason

    # -- to see -----------------------------------------------------------------------------------------------------

    def read(self, *, history: bool = False) -> Reading:
        """What the API says now; `history`: also whether what was told is whole."""
        try:
            engine = next(row for row in self._client.engines() if row["id"] == self.engine_id)
            overview = self._client.get("/v1/overview", engine=self.engine_id, since=self._since.isoformat())
            return Reading(
                at=self._clock(),
                engine=engine,
                alerts=self._client.alerts(limit=100),
                runs=self._client.policy_runs(engine=self.engine_id, limit=100),
                commands=self._client.commands(engine=self.engine_id, limit=50),
                told_requests=overview["requests"],
                torn=self._torn() if history else (),
            )
        except (Unreachable, Unavailable):
            return Reading(at=self._clock())

    def _torn(self) -> list[str]:
        changed = self._client.prefixes(engine=self.engine_id, order="changed", limit=LOOKED_AT)["rows"]
        ids = [row["prefix_id"] for row in changed]
        return [prefix_id for prefix_id in ids if not _is_whole(self._client.prefix(self.engine_id, prefix_id))]

    # -- to prepare -------------------------------------------------------------------------------------------------

    def cap_gpu(self, share: float) -> Undo:
        """Caps the GPU tier at a share of itself and switches the host tier off -> how to undo it."""
        engine = next(row for row in self._client.engines() if row["id"] == self.engine_id)
        newest = [row for row in self._client.desired(engine=self.engine_id) if row["engine_id"] == self.engine_id]
        own = newest[0]["document"] if newest else {}
        total = engine["stats"]["tiers"]["gpu"]["total_bytes"]
        self._client.set_desired(
            {"cap_gpu_bytes": max(1 << 20, int(total * share)), "cap_host_bytes": 0},
            engine=self.engine_id,
            reason=self.reason,
        )
        return {"of": "caps", "changes": {key: own.get(key) for key in CAPS}}

    def tune(self, tuning: Tuning) -> Undo:
        """Changes a policy or a rule, or adds a rule -> how to undo it."""
        if tuning.of == "new rule":
            self._client.add_rule(tuning.name, reason=self.reason, **tuning.changes)
            return {"of": tuning.of, "name": tuning.name}
        now = self._client.policy(tuning.name) if tuning.of == "policy" else self._client.rule(tuning.name)
        changes = dict(tuning.changes)
        if tuning.of == "policy":
            if "every_seconds" in changes and now["cron"] is not None:
                changes["cron"] = None
            if now["paused"]:
                changes["paused"] = False
        undo = {key: now[key] for key in changes if key != "parameters"}
        if changes.get("paused") is False and now["paused_until"] is not None:
            undo["paused_until"] = now["paused_until"]
        if "parameters" in changes:
            undo["parameters"] = {key: now["parameters"].get(key) for key in changes["parameters"]}
        self._change(tuning.of, tuning.name, changes)
        return {"of": tuning.of, "name": tuning.name, "changes": undo}

    def put_back(self, undo: Undo) -> None:
        """Undoes one change."""
        if undo["of"] == "caps":
            self._client.set_desired(undo["changes"], engine=self.engine_id, reason=f"{self.reason}: put back")
        elif undo["of"] == "new rule":
            self._client.remove_rule(undo["name"], reason=self.reason)
        else:
            self._change(undo["of"], undo["name"], undo["changes"])

    def _change(self, of: str, name: str, changes: Mapping[str, Any]) -> None:
        change = self._client.change_policy if of == "policy" else self._client.change_rule
        change(name, reason=self.reason, **changes)

    # -- to break ---------------------------------------------------------------------------------------------------

    def begin(self, incident: FaultIncident | OutageIncident) -> str:
        """Orders the incident -> the id of the command that will begin it; empty when it has begun."""
        if isinstance(incident, OutageIncident):
            assert self._outages is not None
            self._outages.begin(incident.part, incident.lasts_seconds, reason=self.reason)
            return ""
        arguments = {"plan": [line.as_json() for line in incident.plan], "lasts_s": incident.longest_seconds}
        return self._fault(arguments)

    def command(self, command_id: str) -> Mapping[str, Any]:
        """A command as it stands."""
        return self._client.command(command_id)

    def withdraw(self, incident: FaultIncident | OutageIncident) -> str:
        """Ends the incident now, also when it is over already -> the id of the command that does it; empty if done."""
        if isinstance(incident, OutageIncident):
            assert self._outages is not None
            self._outages.end(reason=f"{self.reason}: withdrawn")
            return ""
        return self._fault({"plan": []})

    def _fault(self, arguments: Mapping[str, Any]) -> str:
        sent = self._client.submit(
            self.engine_id, "fault", arguments, reason=self.reason, expires_seconds=COMMAND_SECONDS
        )
        return str(sent["id"])


def _is_whole(detail: Mapping[str, Any]) -> bool:
    """Whether the versions we have of each of a prefix's lives are each there once, with none left out."""
    if any(gap["closed_at"] is None for gap in detail["gaps"]):
        return False
    lives: dict[int, Counter[int]] = {}
    for row in detail["versions"]:
        lives.setdefault(row["life"], Counter())[row["version"]] += 1
    return all(sum(seen.values()) == len(seen) == max(seen) - min(seen) + 1 for seen in lives.values())
