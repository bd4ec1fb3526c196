"""Acts on proposals: the only place where a policy's wish becomes a revision, a command or a deletion."""

from __future__ import annotations

import datetime as dt
from typing import Any

from sqlalchemy.orm import Session

from controlplane.ingest.engines import require_engine_row
from controlplane.steering import commands, desired
from controlplane.steering.deed import Deed, new_traceparent, policy_principal
from controlplane.steering.policies.proposals import IssueCommand, SampleCurve, SetMode


def apply(
    session: Session, policy: str, proposal: SetMode | IssueCommand | SampleCurve, *, epoch: int, now: dt.datetime
) -> dict[str, list[Any]]:
    """Carries out one proposal in this transaction and says what it did. Raises as the write doors do."""
    deed = Deed(principal=policy_principal(policy), reason=proposal.reason, traceparent=new_traceparent(), now=now)
    match proposal:
        case SetMode():
            revised = desired.revise(
                session, deed, engine_id=proposal.engine_id, changes={"mode": proposal.mode}, hold_mode=False
            )
            return {"revisions": [revised.revision], "trace_ids": [deed.trace_id]}
        case IssueCommand():
            draft = commands.Draft(
                engine_id=proposal.engine_id, kind=proposal.kind, arguments=proposal.arguments, epoch=epoch
            )
            command = commands.submit(session, deed, draft)
            return {"commands": [command.id], "trace_ids": [deed.trace_id]}
        case SampleCurve():
            require_engine_row(session, proposal.engine_id).curve_wanted = True
            return {}
