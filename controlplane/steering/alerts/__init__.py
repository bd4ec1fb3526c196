"""Alerts: rules as data, their states, silences, and who is told."""

from controlplane.steering.alerts.evaluation import Change, acknowledge, evaluate
from controlplane.steering.alerts.health import Health
from controlplane.steering.alerts.rules import seed
from controlplane.steering.alerts.state import FIRING, PENDING, RESOLVED

__all__ = ["FIRING", "PENDING", "RESOLVED", "Change", "Health", "acknowledge", "evaluate", "seed"]
