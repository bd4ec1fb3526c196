"""One error tree. Each class has a stable code; its docstring is what an operator reads in the reference."""

from __future__ import annotations

from typing import ClassVar


class EngineError(Exception):
    """Something the engine refused or could not do. The message says what, which value, which limit, what next."""

    code: ClassVar[str] = "engine"


class ConfigError(EngineError):
    """A configuration value is outside its limits. Nothing was started or changed; correct the named value."""

    code = "config"


class SpecError(EngineError):
    """A model description is inconsistent, for example a page that is no multiple of a compression ratio."""

    code = "spec"


class IllegalTransition(EngineError):
    """A prefix was asked to move along an edge its state machine does not have. Nothing was changed."""

    code = "illegal_transition"


class StalePointer(EngineError):
    """A stored object was moved, rewritten or freed after this pointer to it was made. Acquire again."""

    code = "stale_pointer"


class LeaseExpired(EngineError):
    """The lease ran past its deadline or was released. Acquire again; hold leases shorter or raise `lease_s`."""

    code = "lease_expired"


class GraphStale(EngineError):
    """A captured graph was replayed against page tables that have changed since. Capture it again."""

    code = "graph_stale"


class OutOfMemory(EngineError):
    """A tier has no room for an allocation and nothing may be evicted for it (leased or pinned)."""

    code = "out_of_memory"


class NotMaterialised(EngineError):
    """The prefix was committed without tensors: it is tracked for bookkeeping, and there are no bytes to load."""

    code = "not_materialised"


class StateMismatch(EngineError):
    """Tensors handed to `commit` do not have the shapes, dtypes or range that the model description gives."""

    code = "state_mismatch"


class CorruptObject(EngineError):
    """A stored object failed its checksum or could not be parsed. It is quarantined and never served."""

    code = "corrupt_object"


class TierUnavailable(EngineError):
    """A tier could not be read or written: its breaker is open, its device failed, or it is switched off."""

    code = "tier_unavailable"


class EngineClosed(EngineError):
    """The engine was closed: its folder may serve another one by now. Nothing was done; build a new engine."""

    code = "closed"


class FolderLocked(EngineError):
    """Another engine uses this data folder. One folder serves one engine; stop the other or choose a new folder."""

    code = "folder_locked"


class BadNamespace(EngineError):
    """A namespace is not 1 to 128 printable characters. Nothing was looked up or kept; choose another name."""

    code = "bad_namespace"


class CodecRefused(EngineError):
    """The configured codec would not make this object smaller, so it stays in native precision."""

    code = "codec_refused"


class UnknownCacheLayer(EngineError):
    """A model keeps state in a cache layer class that is not mapped. Nothing is guessed; the model is not attached."""

    code = "unknown_cache_layer"


class ModelMismatch(EngineError):
    """The model in hand is not the one the engine was built for: other weights, configuration, dtype or layout."""

    code = "model_mismatch"
