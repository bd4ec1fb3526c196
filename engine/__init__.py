"""kvdeck's engine: a prefix cache for hybrid-attention models that calls nothing a hit until it is proven.

Names are imported when they are first used: the control plane reads values of this package (modes, kinds, causes)
and must not wait seconds for torch, which only the engine itself needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.commands.execute import CommandOutcome
    from engine.commands.ticket import BadCommand, CommandRequest
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

_HOMES = {
    "BadCommand": "engine.commands.ticket",
    "CommandOutcome": "engine.commands.execute",
    "CommandRequest": "engine.commands.ticket",
    "EngineConfig": "engine.config",
    "Mode": "engine.config",
    "GraphGuard": "engine.consistency.graph",
    "PageTable": "engine.consistency.graph",
    "Explanation": "engine.consistency.lease",
    "Lease": "engine.consistency.lease",
    "Cause": "engine.consistency.state",
    "State": "engine.consistency.state",
    "CacheEngine": "engine.engine",
    "EngineError": "engine.errors",
    "Tier": "engine.memory.holding",
    "PagedView": "engine.memory.paged",
    "LoadedState": "engine.memory.state",
    "NewState": "engine.memory.state",
    "ObjectKind": "engine.model.objects",
    "SegmentKey": "engine.model.objects",
    "bytes_per_token": "engine.model.objects",
    "layouts_of": "engine.model.objects",
    "preset": "engine.model.presets",
    "preset_names": "engine.model.presets",
    "ModelSpec": "engine.model.spec",
    "CommitResult": "engine.schedule.publish",
    "Validation": "engine.schedule.validation",
    "Verdict": "engine.schedule.validation",
}

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


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value
