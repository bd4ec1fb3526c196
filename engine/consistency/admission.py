"""The admission cap: how many prefixes and bytes may be held, in total and by tier."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Upper limits; None means the tier's own size, or no limit on prefixes."""

    prefixes: int | None = None
    gpu_bytes: int | None = None
    host_bytes: int | None = None
    disk_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("prefixes", "gpu_bytes", "host_bytes", "disk_bytes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ConfigError(
                    f"cap_{name} is {value!r}; it must be a whole number of at least 1, or null for no cap"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What is held now. `pinned_bytes` cannot be evicted at all."""

    prefixes: int
    gpu_bytes: int
    host_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """How much must leave before something new fits; all zero when it fits already."""

    prefixes: int = 0
    gpu_bytes: int = 0

    @property
    def none(self) -> bool:
        return self.prefixes <= 0 and self.gpu_bytes <= 0


def shortfall(caps: Caps, usage: Usage, new_prefixes: int, new_gpu_bytes: int) -> Shortfall:
    """What has to leave so that the new prefixes and bytes stay within the caps."""
    prefixes = 0 if caps.prefixes is None else max(0, usage.prefixes + new_prefixes - caps.prefixes)
    gpu_bytes = 0 if caps.gpu_bytes is None else max(0, usage.gpu_bytes + new_gpu_bytes - caps.gpu_bytes)
    return Shortfall(prefixes=prefixes, gpu_bytes=gpu_bytes)


def refusal(caps: Caps, new_prefixes: int, new_gpu_bytes: int) -> str:
    """Why something could never fit, however much is evicted; empty when it could."""
    if caps.prefixes is not None and new_prefixes > caps.prefixes:
        return "over_prefix_cap"
    if caps.gpu_bytes is not None and new_gpu_bytes > caps.gpu_bytes:
        return "over_gpu_cap"
    return ""
