"""Whether the control plane answers, and whether it still knows who is here."""

from __future__ import annotations

from controlplane.api.client import Unreachable
from controlplane.clock import utc_now
from controlplane.errors import ControlPlaneError, Forbidden, Unauthorised
from dashboard import control
from dashboard.caching import kept
from dashboard.readings import ControlPlaneHealth


@kept(2, most=1)
def control_plane() -> ControlPlaneHealth:
    """Whether the control plane answers, and whether its database does."""
    now = utc_now()
    try:
        control.health()
    except Unreachable as error:
        return ControlPlaneHealth(state="unreachable", detail=str(error), checked_at=now)
    except ControlPlaneError as error:
        return ControlPlaneHealth(state="database unreadable", detail=str(error), checked_at=now)
    return ControlPlaneHealth(state="up", detail="It answers, and so does its database.", checked_at=now)


@kept(30, most=64)
def token_still_holds(token: str, role: str) -> bool:
    """Whether the control plane still knows this token with this role. Nobody to ask: as before.

    Reads do not pass through the API, so a token that was revoked must be noticed here.
    """
    try:
        return control.identify(token).role == role
    except (Unauthorised, Forbidden):
        return False
    except ControlPlaneError:
        return True
