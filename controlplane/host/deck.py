"""An engine on a deck: exporters, engine and agent, opened together and taken down in the order that loses nothing."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from controlplane.host.agent import Agent, AgentOptions
from controlplane.host.client import check_address
from controlplane.host.export import build_export
from controlplane.settings import VoiceSettings
from engine import CacheEngine, EngineConfig, ModelSpec
from engine.memory.faults import Faults
from engine.telemetry.identity import identity_of


@contextmanager
def engine_on_deck(
    spec: ModelSpec,
    settings: EngineConfig,
    *,
    url: str,
    token: str,
    folder: Path | None = None,
    voice: VoiceSettings | None = None,
    faults: Faults | None = None,
) -> Iterator[CacheEngine]:
    """A `CacheEngine` that the control plane at `url` sees and steers, with a token of role engine.

    Without a control plane behind the address it serves all the same, and reports once there is one; without an
    address it only speaks to whom `voice` names: backends and the port for Prometheus, by default as the environment
    says. `folder` is where the agent keeps outcomes that it could not yet tell: the data folder by default, else a
    temporary one. `faults` are the engine's: none unless somebody asked for them. Raises what `CacheEngine` raises, and
    SettingsError.
    """
    if url:
        check_address(url, token)
    with ExitStack() as parts:
        kept = folder or settings.data_dir or Path(parts.enter_context(tempfile.TemporaryDirectory()))
        kept.mkdir(parents=True, exist_ok=True, mode=0o700)
        boot_id = uuid.uuid4().hex
        voice = voice or VoiceSettings.from_environment()
        if voice.dashboard_url and not settings.dashboard_url:
            settings = replace(settings, dashboard_url=voice.dashboard_url)
        export = build_export(url, token, identity_of(settings.engine_id, boot_id, spec), voice=voice)
        parts.callback(export.shutdown)
        engine = CacheEngine(
            spec,
            settings,
            span_processors=export.span_processors,
            meter_provider=export.meter_provider,
            resource=export.resource,
            boot_id=boot_id,
            faults=faults,
        )
        parts.callback(engine.close)  # its last transitions are spans: before the exporters, after the agent
        if url:
            place = AgentOptions(group=settings.group, labels=settings.labels)
            agent = Agent(engine, url=url, token=token, data_dir=kept, options=place)
            agent.start()
            parts.callback(agent.stop)
        yield engine
