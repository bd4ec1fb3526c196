"""A desired state document, checked: all of it is applied or none."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.clock import NS_PER_S
from engine.config import CODEC_CHOICES, EngineConfig, Mode, check_budget_ratio, check_pin_budget, check_rules
from engine.consistency.admission import Caps
from engine.consistency.namespaces import NamespaceCap, parse_namespace_caps
from engine.errors import ConfigError

KEYS = (
    "mode", "mode_expires_at", "cap_prefixes", "cap_gpu_bytes", "cap_host_bytes", "cap_disk_bytes", "codec",
    "checkpoint_every_tokens", "checkpoint_budget_ratio", "pin_budget_ratio", "namespace_caps",
    "admission_rule", "eviction",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """A checked document, with the engine's own configuration where it says nothing."""

    caps: Caps
    mode: Mode
    mode_expires_ns: int
    codec: str
    checkpoint_every_tokens: int
    checkpoint_budget_ratio: float
    pin_budget_ratio: float
    namespace_caps: Mapping[str, NamespaceCap]
    admission_rule: str
    eviction: str


def parse_desired(document: Mapping[str, Any], own: EngineConfig) -> Desired:
    """Raises `ConfigError` naming the key, the value and what is allowed."""
    if unknown := set(document) - set(KEYS) - {"error"}:
        raise ConfigError(f"desired state has unknown keys: {', '.join(sorted(unknown))}; known: {', '.join(KEYS)}")

    def value(key: str) -> Any:
        wanted = document.get(key)
        return getattr(own, key) if wanted is None else wanted

    mode, codec, every = value("mode"), value("codec"), value("checkpoint_every_tokens")
    if mode not in list(Mode):
        raise ConfigError(f"mode is {mode!r}; known: {', '.join(Mode)}")
    if codec not in CODEC_CHOICES:
        raise ConfigError(f"codec is {codec!r}; known: {', '.join(CODEC_CHOICES)}")
    if not isinstance(every, int) or every < 0:
        raise ConfigError(f"checkpoint_every_tokens is {every!r}; it must be a whole number, 0 for none")
    caps = Caps(
        prefixes=value("cap_prefixes"),
        gpu_bytes=value("cap_gpu_bytes"),
        host_bytes=value("cap_host_bytes"),
        disk_bytes=value("cap_disk_bytes"),
    )
    shares = parse_namespace_caps(value("namespace_caps"), min(own.gpu_bytes, caps.gpu_bytes or own.gpu_bytes))
    budget, admission, eviction = value("checkpoint_budget_ratio"), value("admission_rule"), value("eviction")
    check_budget_ratio(budget)
    check_pin_budget(pins := value("pin_budget_ratio"))
    check_rules(admission, eviction)
    expires_ns = _expiry(document.get("mode_expires_at"))
    return Desired(
        caps=caps, mode=Mode(mode), mode_expires_ns=expires_ns, codec=codec, checkpoint_every_tokens=every,
        checkpoint_budget_ratio=budget, pin_budget_ratio=pins, namespace_caps=shares,
        admission_rule=admission, eviction=eviction,
    )  # fmt: skip


def _expiry(text: Any) -> int:
    if text is None:
        return 0
    try:
        at = dt.datetime.fromisoformat(str(text))
    except ValueError as error:
        raise ConfigError(f"mode_expires_at is {text!r}; it must be an RFC 3339 time") from error
    if at.tzinfo is None:
        raise ConfigError(f"mode_expires_at is {text!r}; it needs a time zone, e.g. a Z at the end")
    return int(at.timestamp() * NS_PER_S)
