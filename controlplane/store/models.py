"""The tables of the store. `migrations/versions/` builds exactly these; a test compares the two."""

from controlplane.store.base import Base
from controlplane.store.models_alerts import Alert, AlertRuleRow, InboundAlert, Notification, Receiver, Silence
from controlplane.store.models_curves import CapPrediction, CurveSample
from controlplane.store.models_policies import Policy, PolicyRefusal, PolicyRun
from controlplane.store.models_prefixes import Checkpoint, Engine, HistoryGap, Prefix, PrefixLabel, PrefixVersion
from controlplane.store.models_series import (
    IngestedBatch,
    LossHour,
    LossRollup,
    MetricHour,
    MetricPoint,
    MetricRollup,
    MetricSeries,
    RequestHour,
    RequestRecord,
    RequestRollup,
    ValidationFailure,
    ValidationHour,
    ValidationRollup,
)
from controlplane.store.models_steering import Audit, AuditFloor, Command, DesiredState, LeadershipRow, Token

__all__ = [
    "Alert",
    "AlertRuleRow",
    "Audit",
    "AuditFloor",
    "Base",
    "CapPrediction",
    "Checkpoint",
    "Command",
    "CurveSample",
    "DesiredState",
    "Engine",
    "HistoryGap",
    "InboundAlert",
    "IngestedBatch",
    "LeadershipRow",
    "LossHour",
    "LossRollup",
    "MetricHour",
    "MetricPoint",
    "MetricRollup",
    "MetricSeries",
    "Notification",
    "Policy",
    "PolicyRefusal",
    "PolicyRun",
    "Prefix",
    "PrefixLabel",
    "PrefixVersion",
    "Receiver",
    "RequestHour",
    "RequestRecord",
    "RequestRollup",
    "Silence",
    "Token",
    "ValidationFailure",
    "ValidationHour",
    "ValidationRollup",
]
