"""How an engine is set up: one frozen value, checked when it is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from engine.consistency.admission import Caps, admission_rule
from engine.consistency.eviction import EVICTIONS
from engine.consistency.namespaces import NamespaceCap, parse_namespace_caps
from engine.errors import ConfigError

MIB = 1 << 20


class Mode(StrEnum):
    """The ladder of degradation, from fastest to safest. Each step skips more ways to reuse."""

    NORMAL = "normal"
    NO_DISK = "no_disk"  # no restores from disk
    RESIDENT_ONLY = "resident_only"  # no restores at all
    FULL_ONLY = "full_only"  # no coded KV either
    BYPASS = "bypass"  # no reuse: always right, never fast
    DRAIN = "drain"  # no commits either: what is held only becomes less

    @property
    def rung(self) -> int:
        return _RUNGS[self]


_RUNGS: dict[str, int] = {mode: rung for rung, mode in enumerate(Mode)}

LEAST_CURVE_SAMPLES, MOST_CURVE_SAMPLES = 512, 65_536
MOST_CURVE_NAMESPACES = 256
CODEC_CHOICES = ("lossless", "int8", "fp8", "int4", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Sizes, limits and knobs. Raises `ConfigError` naming the value, its limits and what to do.

    A tier of 0 bytes is absent. `materialise=False` keeps the books of commits without bytes: simulation.
    """

    engine_id: str = "engine"
    device: str = "cpu"
    gpu_bytes: int = 256 * MIB
    host_bytes: int = 0
    disk_bytes: int = 0
    data_dir: Path | None = None  # a str is taken too
    slab_bytes: int | None = None  # None: derived from the GPU tier and the model's largest object
    materialise: bool = True
    mode: str = "normal"
    cap_prefixes: int | None = None
    cap_gpu_bytes: int | None = None
    cap_host_bytes: int | None = None
    cap_disk_bytes: int | None = None
    namespace_caps: Mapping[str, NamespaceCap] = field(default_factory=dict)  # shares of the GPU tier
    admission_rule: str = "all"  # which pages of a prompt are kept: all, second_touch, first_pages:N
    eviction: str = "lru"  # who leaves first: lru, cost_aware
    pin_budget_ratio: float = 0.5  # the share of the GPU tier that pins may hold
    codec: str = "lossless"
    code_compressed: bool = False  # lossy codecs also touch history that the model compresses itself (CSA, HCA, MLA)
    max_logit_error: float | None = None  # refuse a lossy codec that a judge measured worse, over a whole path
    max_kl: float | None = None  # the same in nats of mean KL divergence
    checkpoint_every_tokens: int = 0
    checkpoint_budget_ratio: float = 0.3
    replay: bool = True
    lease_s: float = 60.0
    restore_timeout_s: float = 5.0
    persist_s: float = 30.0  # how long `close` may write prefixes to disk, newest first
    prefill_tokens_per_s: float = 20_000.0
    scrub_bytes_per_s: float = 64e6  # how fast a scrub reads the disk, unless the command says otherwise
    bulk_prefixes_per_s: float = 500.0  # how fast commands on many prefixes go, unless the command says otherwise
    bulk_bytes_per_s: float = 512e6
    queue_bound: int = 64
    ring_capacity: int = 65_536
    spans: bool = True
    curve_samples: int = 2048  # pages watched to tell hit rate against cap; 0: no curve
    curve_namespaces: int = 16  # so many have a curve of their own, first come; the others share one
    lost_memory_bytes: int = 4 * MIB  # remembers what left, to tell the evicted from the new; 0: all of it is new
    dashboard_url: str = ""  # the dashboard's address; spans of prefixes and commands then say where it shows them
    group: str = ""  # the engines it is steered with; operators may say otherwise later
    labels: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_types()
        if self.data_dir is not None:
            object.__setattr__(self, "data_dir", Path(self.data_dir))
        self._positive("gpu_bytes", "queue_bound", "ring_capacity")
        if self.slab_bytes is not None:
            self._positive("slab_bytes")
        self._not_negative("host_bytes", "disk_bytes", "checkpoint_every_tokens", "lost_memory_bytes")
        check_curve(self.curve_samples, self.curve_namespaces)
        for name in (
            "lease_s",
            "restore_timeout_s",
            "persist_s",
            "prefill_tokens_per_s",
            "scrub_bytes_per_s",
            "bulk_prefixes_per_s",
            "bulk_bytes_per_s",
        ):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be above 0")
        for name in ("max_logit_error", "max_kl"):
            bound = getattr(self, name)
            if bound is not None and not bound > 0:
                raise ConfigError(f"{name} is {bound!r}; it must be above 0, or None for no bound")
        if self.mode not in list(Mode):
            raise ConfigError(f"mode is {self.mode!r}; known: {', '.join(Mode)}")
        if self.codec not in CODEC_CHOICES:
            raise ConfigError(f"codec is {self.codec!r}; known: {', '.join(CODEC_CHOICES)}")
        check_budget_ratio(self.checkpoint_budget_ratio)
        check_pin_budget(self.pin_budget_ratio)
        if self.disk_bytes and self.data_dir is None:
            raise ConfigError(
                "disk_bytes is set but data_dir is not; name a folder for the disk tier or set disk_bytes to 0"
            )
        if not self.materialise and (self.host_bytes or self.disk_bytes):
            raise ConfigError(
                "materialise=False keeps no bytes, so there is nothing to offload; set host_bytes and disk_bytes to 0"
            )
        shares = parse_namespace_caps(self.namespace_caps, min(self.gpu_bytes, self.caps.gpu_bytes or self.gpu_bytes))
        object.__setattr__(self, "namespace_caps", shares)
        check_rules(self.admission_rule, self.eviction)
        _check_web_address("dashboard_url", self.dashboard_url)

    @property
    def caps(self) -> Caps:
        return Caps(
            prefixes=self.cap_prefixes,
            gpu_bytes=self.cap_gpu_bytes,
            host_bytes=self.cap_host_bytes,
            disk_bytes=self.cap_disk_bytes,
        )

    def _check_types(self) -> None:
        for each in fields(self):
            wanted = _TYPES.get(str(each.type).removesuffix(" | None"))
            value: Any = getattr(self, each.name)
            if wanted is None or (value is None and str(each.type).endswith(" | None")):
                continue
            kind, words = wanted
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                raise ConfigError(f"{each.name} is {value!r}; it must be {words}")
            if value != value:  # not a number
                raise ConfigError(f"{each.name} is {value!r}; it must be {words}")

    def _positive(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")

    def _not_negative(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 0 or more")


# By annotation: what a value must be, and how that is said. Sizes are counts of bytes, not texts such as "8G".
_TYPES: Mapping[str, tuple[type, str]] = {
    "int": (Integral, "a whole number (of bytes, where it is a size)"),
    "float": (Real, "a number"),
    "bool": (bool, "True or False"),
    "str": (str, "a text"),
}


def _check_web_address(name: str, value: str) -> None:
    if value and not value.startswith(("http://", "https://")):
        raise ConfigError(f"{name} is {value!r}; an http(s) address, or nothing")


def check_budget_ratio(ratio: Any) -> None:
    """Raises `ConfigError` for what is no share of the GPU tier."""
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0.0 < ratio < 1.0:
        raise ConfigError(f"checkpoint_budget_ratio is {ratio!r}; a share of the GPU tier, between 0 and 1")


def check_pin_budget(ratio: Any) -> None:
    """Raises `ConfigError` for what is no share of the GPU tier; the whole of it is one."""
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0.0 < ratio <= 1.0:
        raise ConfigError(f"pin_budget_ratio is {ratio!r}; a share of the GPU tier, above 0 and at most 1")


def check_rules(admission: Any, eviction: Any) -> None:
    """Raises `ConfigError` for rules that there are not."""
    admission_rule(admission, 1)
    if eviction not in EVICTIONS:
        raise ConfigError(f"eviction is {eviction!r}; known: {', '.join(EVICTIONS)}")


def check_curve(samples: Any, namespaces: Any) -> None:
    """Raises `ConfigError` for what no curve can be sampled with."""
    if samples != 0 and not LEAST_CURVE_SAMPLES <= samples <= MOST_CURVE_SAMPLES:
        raise ConfigError(
            f"curve_samples is {samples!r}; it must be {LEAST_CURVE_SAMPLES:,} to {MOST_CURVE_SAMPLES:,}, or 0 for none"
        )
    if not 0 <= namespaces <= MOST_CURVE_NAMESPACES:
        raise ConfigError(f"curve_namespaces is {namespaces!r}; it must be 0 to {MOST_CURVE_NAMESPACES}")
