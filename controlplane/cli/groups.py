"""Options that many verbs share, said once: a dataclass of options as a parameter of a verb.

    @grouped
    def evict(prefix_ids: PrefixIds, which: Which, line: Line) -> None: ...

Typer sees the fields of `Which` and `Line` as options of the verb; the verb gets the values.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict, get_type_hints

import typer

from controlplane.api.client import ControlPlaneClient
from controlplane.cli.completion import complete_engines
from controlplane.cli.context import (
    DEFAULT_DATA_DIR,
    DEFAULT_URL,
    AsJson,
    DataDir,
    EngineOption,
    Reason,
    TokenOption,
    Url,
    connect,
    parse_seconds,
)
from controlplane.cli.exits import CliError, Exit

NO_VALUE = "-"  # as in `name=-`: take the label away


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with every parameter that is a dataclass taken apart into options of its own."""
    hints = get_type_hints(verb, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if inspect.isclass(hint) and is_dataclass(hint)}
    own, shared = [], []
    for parameter in inspect.signature(verb).parameters.values():
        if parameter.name not in groups:
            own.append(parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        types = get_type_hints(groups[parameter.name], include_extras=True)
        shared += [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=types[f.name])
            for f in fields(groups[parameter.name])
        ]

    @functools.wraps(verb)
    def run(**values: Any) -> None:
        built = {name: kind(**{f.name: values.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        verb(**values, **built)

    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *shared)}
    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The way to the control plane, and how the answer is shown."""

    url: Url = DEFAULT_URL
    token: TokenOption = ""
    data_dir: DataDir = DEFAULT_DATA_DIR
    as_json: AsJson = False

    def open(self) -> ControlPlaneClient:
        """A client; use it as a context manager."""
        return connect(self.url, self.token, Path(self.data_dir))


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """A reason for the audit."""

    reason: Reason = "by hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which engines: one, a group, or all of them."""

    engine: EngineOption = ""
    group: Annotated[str, typer.Option("--group", "-g", help="Every engine of this group.")] = ""
    fleet: Annotated[bool, typer.Option("--fleet", help="Every engine.")] = False

    def check(self) -> None:
        """Raises CliError when more than one of them is given."""
        if sum(map(bool, (self.engine, self.group, self.fleet))) > 1:
            raise CliError("--engine, --group and --fleet exclude each other.", "Give one of them.", Exit.USAGE)

    @property
    def is_many(self) -> bool:
        """Whether the command is for more than one engine."""
        return bool(self.group) or self.fleet


class ScopeNames(TypedDict):
    """A scope as the client takes it."""

    engine: str | None
    group: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeOf:
    """Whose desired state: one engine's, a group's, or the fleet's."""

    engine: Annotated[
        str,
        typer.Option("--engine", "-e", help="Only this engine; else the whole fleet.", autocompletion=complete_engines),
    ] = ""
    group: Annotated[str, typer.Option("--group", "-g", help="Only this group of engines.")] = ""

    @property
    def names(self) -> ScopeNames:
        """As the client takes them."""
        return ScopeNames(engine=self.engine or None, group=self.group or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Which prefixes, instead of ids. Everything given must hold."""

    label: Annotated[list[str] | None, typer.Option("--label", "-l", help="NAME or NAME=VALUE; may be repeated.")] = (
        None
    )
    namespace: Annotated[str, typer.Option(help="Of this namespace.")] = ""
    state: Annotated[list[str] | None, typer.Option(help="FULL, COMPRESSED, ...; may be repeated.")] = None
    held_in: Annotated[str, typer.Option("--held-in", help="With bytes in this tier: gpu, host, disk.")] = ""
    idle: Annotated[str, typer.Option(help="Not used for so long: 30m, 2h.")] = ""
    least_useful: Annotated[
        int | None, typer.Option(min=1, help="So many, those first that served the fewest tokens a byte.")
    ] = None
    pinned: Annotated[bool | None, typer.Option("--pinned/--not-pinned", help="Only pinned ones, or none.")] = None
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many on one engine.")] = 1000

    @property
    def selector(self) -> dict[str, Any] | None:
        """As the API takes it; None when nothing was selected by."""
        found: dict[str, Any] = {
            "labels": labels_of(self.label or [], any_value=True) or None,
            "namespace": self.namespace or None,
            "states": [state.upper() for state in self.state or []] or None,
            "tier": self.held_in or None,
            "idle_s": parse_seconds(self.idle) if self.idle else None,
            "least_useful": self.least_useful,
            "pinned": self.pinned,
        }
        given = {name: value for name, value in found.items() if value is not None}
        return {**given, "limit": self.limit} if given else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast bulk work goes."""

    prefixes_per_s: Annotated[int | None, typer.Option(min=1, help="Default: the engine's own pace.")] = None
    bytes_per_s: Annotated[str, typer.Option(help="How fast: 20MiB, 1G. Default: the engine's own pace.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How a command is sent and followed."""

    reason: Annotated[str, typer.Option("--reason", "-m", help="Why; it goes into the audit.")] = "by hand"
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what it would touch.")] = False
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the outcome.")] = True
    expires: Annotated[str, typer.Option("--expires", help="Give up if the engine has not begun by then: 30s, 5m.")] = (
        "5m"
    )
    key: Annotated[str, typer.Option("--key", help="Idempotency key: sent twice, it is one command.")] = ""


def labels_of(texts: list[str], *, any_value: bool = False) -> dict[str, str | None]:
    """Labels as typed: NAME=VALUE; NAME=- takes one away, or with `any_value` NAME alone means any value."""
    found: dict[str, str | None] = {}
    for text in texts:
        name, has_value, value = text.partition("=")
        if not name or not (has_value or any_value):
            raise CliError(f"{text!r} is no label.", "Write NAME=VALUE, or NAME=- to take it away.", Exit.USAGE)
        found[name] = None if not has_value or (value == NO_VALUE and not any_value) else value
    return found
