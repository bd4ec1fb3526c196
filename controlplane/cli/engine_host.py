"""`kvdeck engine`: an inference process without the model: engine, exporters, agent, and a verified workload."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.auth import SECRET_PREFIX
from controlplane.cli.context import DEFAULT_DATA_DIR
from controlplane.cli.exits import ERR, CliError, Exit
from controlplane.cli.groups import labels_of
from controlplane.settings import read_secret

if TYPE_CHECKING:
    from engine import CacheEngine

MIB = 1 << 20
PERSIST_S = 5.0  # `kvdeck up` waits a little longer than this for the engine to end
DEFAULT_FOLDER = DEFAULT_DATA_DIR / "engine"  # where `kvdeck up` puts its own


class Workload(StrEnum):
    """What the process does by itself."""

    GENERATED = "generated"  # shared prompts, chats and agent loops, for ever
    NONE = "none"  # nothing; it waits for commands


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """Everything the host process needs; sizes in MiB, `rate_per_s` in requests a second."""

    engine_id: str
    url: str
    token: str
    data_dir: Path
    spec: str
    device: str
    gpu_mib: int
    host_mib: int
    disk_mib: int
    codec: str
    workload: Workload
    rate_per_s: float
    seed: int
    allow_faults: bool
    group: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def engine(
    engine_id: Annotated[str, typer.Option("--id", help="Name of this engine, the same over restarts.")] = "local",
    url: Annotated[
        str, typer.Option(envvar="KVDECK_URL", help="The control plane; without it the engine runs by itself.")
    ] = "",
    token: Annotated[
        str, typer.Option(envvar="KVDECK_ENGINE_TOKEN", help="Token of role engine; better in the variable.")
    ] = "",
    token_file: Annotated[
        str, typer.Option(envvar="KVDECK_ENGINE_TOKEN_FILE", help="A file with that token in it.", show_default="none")
    ] = "",
    data_dir: Annotated[
        Path, typer.Option(help="Folder of the disk tier and of what the agent remembers; one engine a folder.")
    ] = DEFAULT_FOLDER,
    spec: Annotated[str, typer.Option(help="Model preset; `kvdeck spec` lists them.")] = "small-deepseek-v4",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    gpu_mib: Annotated[int, typer.Option(min=1, help="GPU tier (host memory on --device cpu).")] = 6,
    host_mib: Annotated[int, typer.Option(min=0, help="Host tier; 0 leaves it out.")] = 6,
    disk_mib: Annotated[int, typer.Option(min=0, help="Disk tier; 0 leaves it out.")] = 256,
    codec: Annotated[str, typer.Option(help="none, lossless, int8, fp8 or int4.")] = "lossless",
    workload: Annotated[Workload, typer.Option(help="What it runs by itself.")] = Workload.GENERATED,
    rate: Annotated[float, typer.Option(min=0.01, help="Requests a second of the generated workload.")] = 8.0,
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 0,
    allow_faults: Annotated[
        bool, typer.Option("--allow-faults", help="Take the command `fault` from admins, for game days.")
    ] = False,
    group: Annotated[str, typer.Option(envvar="KVDECK_ENGINE_GROUP", help="The group this engine is in.")] = "",
    labels: Annotated[list[str] | None, typer.Option("--label", "-l", help="NAME=VALUE; may be repeated.")] = None,
) -> None:
    """Run one engine host until SIGTERM or Ctrl-C. Prefixes on disk are kept for the next start.

    Every byte that a request loads is compared with the truth; wrong bytes show in the engine's stats.
    """

    config = HostConfig(
        engine_id=engine_id,
        url=url,
        token=token or _token_of(token_file),
        data_dir=data_dir,
        spec=spec,
        device=device,
        gpu_mib=gpu_mib,
        host_mib=host_mib,
        disk_mib=disk_mib,
        codec=codec,
        workload=workload,
        rate_per_s=rate,
        seed=seed,
        allow_faults=allow_faults,
        group=group,
        labels={name: value or "" for name, value in labels_of(labels or []).items()},
    )
    run_host(config)


def _token_of(path: str) -> str:
    """The token in a file; "" without one. Raises CliError for a file that holds something else: it is not repeated."""
    found = read_secret("KVDECK_ENGINE_TOKEN_FILE", path) if path else ""
    if found and not re.fullmatch(rf"{SECRET_PREFIX}[A-Za-z0-9_-]+", found):
        raise CliError(
            f"{path} holds no token of kvdeck: one begins with {SECRET_PREFIX} and stands alone.",
            "Make one: `kvdeck token create NAME --role engine > FILE`.",
            Exit.USAGE,
        )
    return found


def run_host(config: HostConfig) -> None:
    """Build the parts, run until told to stop, and take them down in the order that loses nothing."""
    with _stop_on_signals() as stop, _opened(config) as engine:
        ERR.print(f"engine {engine.id} serves {config.spec}; its folder is {config.data_dir}", markup=False)
        if config.allow_faults:
            ERR.print("it takes faults from admins (--allow-faults): for game days, not for service", markup=False)
        if config.workload is Workload.NONE:
            _idle(engine, stop, ticks=not config.url)
        else:
            _run_workload(config, engine, stop)
    ERR.print(f"engine {config.engine_id} has stopped; prefixes on disk are kept", markup=False)


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """SIGTERM and SIGINT ask for a clean stop; the handlers of before come back at the end."""
    stop = threading.Event()

    def ask(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _opened(config: HostConfig) -> AbstractContextManager[CacheEngine]:
    """The engine, on the deck where there is an address of one."""
    from controlplane.host.deck import engine_on_deck
    from engine import EngineConfig, preset
    from engine.integrations.synthetic import use_one_thread
    from engine.memory.drill import Drill

    use_one_thread()
    config.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings = EngineConfig(
        engine_id=config.engine_id,
        device=config.device,
        gpu_bytes=config.gpu_mib * MIB,
        host_bytes=config.host_mib * MIB,
        disk_bytes=config.disk_mib * MIB,
        data_dir=config.data_dir if config.disk_mib else None,
        codec=config.codec,
        persist_s=PERSIST_S,
        group=config.group,
        labels=dict(config.labels),
    )
    spec = preset(config.spec)
    faults = Drill(seed=config.seed) if config.allow_faults else None
    return engine_on_deck(spec, settings, url=config.url, token=config.token, folder=config.data_dir, faults=faults)


def _idle(engine: CacheEngine, stop: threading.Event, *, ticks: bool) -> None:
    while not stop.wait(1.0):
        if ticks:  # with a control plane the agent does it
            engine.tick()


def _run_workload(config: HostConfig, engine: CacheEngine, stop: threading.Event) -> None:
    from controlplane.workload.driver import Driver, DriverConfig
    from controlplane.workload.generator import Generator, GeneratorConfig
    from engine.integrations.synthetic import SyntheticModel
    from engine.memory.codec import LOSSY

    model = SyntheticModel(engine.spec, device=config.device, codec=LOSSY)  # a command may name any
    driving = DriverConfig(inflight=4, speed=1.0, ticks=not config.url)
    generator = Generator(GeneratorConfig(seed=config.seed, rate_per_s=config.rate_per_s))
    Driver(engine, model, driving, stop=stop).run(generator)
