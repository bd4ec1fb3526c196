"""What every verb shares: its options, the line to the control plane, and how results are shown."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.table import Table

from controlplane.api.client import ControlPlaneClient
from controlplane.cli.completion import complete_engines
from controlplane.cli.exits import ERR, OUT, CliError, Exit
from controlplane.settings import Settings
from controlplane.wording import bytes_text

DEFAULT_DATA_DIR = Path("var")
DEFAULT_URL = "http://127.0.0.1:8410"
OPERATOR_TOKEN = "operator.token"
DECK = "deck.json"  # the ports of the `up` that runs, for the other verbs
LONG_COLUMNS = frozenset({"why", "meaning", "summary", "outcome", "document", "reason", "namespace", "model", "labels"})
SHORT_ID = 16
LONGEST_SECONDS = 3650 * 86_400

Url = Annotated[str, typer.Option("--url", envvar="KVDECK_URL", help="The control plane.")]
TokenOption = Annotated[
    str,
    typer.Option(
        "--token", envvar="KVDECK_TOKEN", show_default=False, help="Default: the file that `kvdeck up` wrote."
    ),
]
DataDir = Annotated[Path, typer.Option("--data-dir", envvar="KVDECK_DATA_DIR", help="Where `kvdeck up` keeps all.")]
AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON, for scripts.")]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        "-e",
        help="The engine's id; may be left out while there is only one.",
        autocompletion=complete_engines,
    ),
]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; it goes into the audit.")]


def say_stale_once() -> Callable[[int], None]:
    """Says to the terminal, beside the answer, that the first of a verb's answers is old: the others are as old."""
    said: list[int] = []

    def say(age_seconds: int) -> None:
        if not said:
            ERR.print(f"[bold yellow]stale:[/] the database does not answer; this is what it said {age_seconds} s ago")
        said.append(age_seconds)

    return say


def connect(
    url: str,
    token: str,
    data_dir: Path,
    *,
    timeout_seconds: float = 10.0,
    on_stale: Callable[[int], None] | None = None,
) -> ControlPlaneClient:
    """A client with the token given, or with the one `kvdeck up` left in the data folder of this machine."""
    ports = running_ports(data_dir) if url == DEFAULT_URL else {}
    if ports:  # this folder's own deck, wherever it listens, and not another one on the usual port
        url = f"http://127.0.0.1:{ports['api_port']}"
    if not token and _is_loopback(url):
        # Only ever sent to this machine: the file is this machine's operator's, not every server's.
        token = read_token(data_dir / OPERATOR_TOKEN)
    return ControlPlaneClient(
        url, token or None, timeout_seconds=timeout_seconds, on_stale=on_stale or say_stale_once()
    )


def running_ports(data_dir: Path) -> dict[str, int]:
    """The ports of the deck that `kvdeck up` runs on this data folder; empty when none does."""
    try:
        found = json.loads((data_dir / DECK).read_text())
        return {name: int(found[name]) for name in ("api_port", "dashboard_port")}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def read_token(path: Path) -> str:
    """The secret in a token file; empty when there is none to read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def settings_for(data_dir: Path, **chosen: Any) -> Settings:
    """The settings of the environment with this data folder and what was chosen on the command line.

    Raises CliError when the data folder is or lies below something that is no folder.
    """
    found = next(place for place in (data_dir.absolute(), *data_dir.absolute().parents) if place.exists())
    if not found.is_dir():
        raise CliError(f"{data_dir} cannot be the data folder: {found} is a file.", "Give a folder: --data-dir.")
    variables = {f"KVDECK_{name.upper()}": str(value) for name, value in chosen.items() if value is not None}
    return Settings.from_environment({**os.environ, "KVDECK_DATA_DIR": str(data_dir.absolute()), **variables})


def choose_engine(client: ControlPlaneClient, named: str) -> str:
    """The engine named, or the only one there is. Raises CliError when it is not clear."""
    if named:
        return named
    engines = [engine["id"] for engine in client.engines()]
    if len(engines) == 1:
        return str(engines[0])
    if not engines:
        raise CliError("No engine has registered yet.", "Start one with `kvdeck engine`.", Exit.NOT_FOUND)
    raise CliError(f"There are {len(engines)} engines.", f"Name one: --engine {'|'.join(engines)}.", Exit.USAGE)


def show_json(body: Any) -> None:
    """A result for scripts."""
    typer.echo(json.dumps(body, indent=2, ensure_ascii=False))


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A result for people."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column in columns:
        # Only what may be long is folded: an id or a number in two lines cannot be read or copied.
        is_long = column in LONG_COLUMNS
        table.add_column(column, overflow="fold", no_wrap=not is_long, min_width=8 if is_long else None)
    count = 0
    for row in rows:
        table.add_row(*(as_text(cell) for cell in row))
        count += 1
    if count:
        OUT.print(table)
    else:
        OUT.print(f"{title}: none")


def as_text(cell: Any) -> str:
    """A cell as a person reads it."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else ""
    if isinstance(cell, float):
        return f"{cell:.3g}"
    return str(cell).replace("[", "\\[")


def as_time(text: str | None) -> str:
    """A time as a person reads it in a table: to the second, in UTC."""
    return "-" if text is None else text[5:19].replace("T", " ")


def as_bytes(count: int | None) -> str:
    """Bytes in binary units."""
    return "-" if count is None else bytes_text(count)


def parse_bytes(text: str) -> int:
    """Bytes as a person types them: 512, 64MiB, 1.5G. Raises CliError."""
    units = {"": 1, "B": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
    number = text.strip().rstrip("iIbB" if text.strip()[-1:] in "iIbB" else "")
    unit = number[-1:].upper() if number[-1:].isalpha() else ""
    digits = number[: len(number) - len(unit)].strip()
    try:
        return _not_negative(int(float(digits) * units[unit]))
    except (ValueError, OverflowError, KeyError):
        raise CliError(f"{text!r} is no number of bytes.", "Write 1073741824, 64MiB or 1.5G.", Exit.USAGE) from None


def parse_seconds(text: str) -> int:
    """A span of time as a person types it: 90, 90s, 15m, 2h, 1d. Raises CliError."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    unit = text[-1:].lower()
    digits = text[:-1] if unit in units else text
    try:
        seconds = _not_negative(int(float(digits) * units.get(unit, 1)))
    except (ValueError, OverflowError):
        raise CliError(f"{text[:80]!r} is no span of time.", "Write 90s, 15m, 2h or 1d.", Exit.USAGE) from None
    if seconds > LONGEST_SECONDS:
        raise CliError(f"{text[:80]!r} is over ten years.", "Write 90s, 15m, 2h or 1d.", Exit.USAGE)
    return seconds


def _not_negative(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return number


def _is_loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
