"""kvdeck's engine: a prefix cache for hybrid-attention models that calls nothing a hit until it is proven."""

from engine.commands import BadCommand, CommandOutcome, CommandRequest
from engine.config import EngineConfig, Mode
from engine.consistency.graph import GraphGuard, PageTable
from engine.consistency.lease import Explanation, Lease
from engine.consistency.state import Cause, State
from engine.engine import CacheEngine
from engine.errors import EngineError
from engine.memory.holding import Tier
from engine.memory.paged import PagedView
from engine.memory.state import LoadedState, NewState
from engine.model.objects import ObjectKind, SegmentKey, bytes_per_token, layouts_of
from engine.model.presets import preset, preset_names
from engine.model.spec import ModelSpec
from engine.schedule.publish import CommitResult
from engine.schedule.validation import Validation, Verdict

__all__ = [
    "BadCommand",
    "CacheEngine",
    "Cause",
    "CommandOutcome",
    "CommandRequest",
    "CommitResult",
    "EngineConfig",
    "EngineError",
    "Explanation",
    "GraphGuard",
    "Lease",
    "LoadedState",
    "Mode",
    "ModelSpec",
    "NewState",
    "ObjectKind",
    "PageTable",
    "PagedView",
    "SegmentKey",
    "State",
    "Tier",
    "Validation",
    "Verdict",
    "bytes_per_token",
    "layouts_of",
    "preset",
    "preset_names",
]
