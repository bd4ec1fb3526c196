"""Who speaks: the resource of every span and metric of one engine."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from engine.model.spec import ModelSpec


def identity_of(engine_id: str, boot_id: str, spec: ModelSpec) -> dict[str, str]:
    """Resource attributes: docs/reference/telemetry.md, "Resource"."""
    return {
        "service.name": "kvdeck-engine",
        "service.version": _version(),
        "service.instance.id": engine_id,
        "kvdeck.engine.id": engine_id,
        "kvdeck.engine.boot_id": boot_id,
        "kvdeck.model": spec.name,
        "kvdeck.fingerprint": spec.fingerprint,
    }


def _version() -> str:
    try:
        return version("kvdeck")
    except PackageNotFoundError:  # run from a source tree that was not installed
        return "0"
