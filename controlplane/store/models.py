"""The tables of the store. `migrations/versions/` builds exactly these; a test compares the two."""

from controlplane.store.base import Base
from controlplane.store.models_prefixes import Checkpoint, Engine, HistoryGap, Prefix, PrefixLabel, PrefixVersion
from controlplane.store.models_series import (
    IngestedBatch,
    MetricPoint,
    MetricRollup,
    MetricSeries,
    RequestRollup,
    ValidationFailure,
    ValidationRollup,
)
from controlplane.store.models_steering import Alert, Audit, Command, DesiredState, Policy, PolicyRun, Token

__all__ = [
    "Alert",
    "Audit",
    "Base",
    "Checkpoint",
    "Command",
    "DesiredState",
    "Engine",
    "HistoryGap",
    "IngestedBatch",
    "MetricPoint",
    "MetricRollup",
    "MetricSeries",
    "Policy",
    "PolicyRun",
    "Prefix",
    "PrefixLabel",
    "PrefixVersion",
    "RequestRollup",
    "Token",
    "ValidationFailure",
    "ValidationRollup",
]
