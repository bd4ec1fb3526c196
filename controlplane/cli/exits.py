"""Exit codes that scripts can use, and the one place where an error becomes a sentence on the terminal."""

from __future__ import annotations

from enum import IntEnum

from rich.console import Console

from controlplane.errors import (
    BadRequest,
    ControlPlaneError,
    Forbidden,
    NotFound,
    SettingsError,
    TooManyRequests,
    Unauthorised,
    Unavailable,
)

# stdout is for results, so that they can be piped; everything else goes to stderr.
OUT = Console(highlight=False, soft_wrap=True)
ERR = Console(stderr=True, highlight=False, soft_wrap=True)
if not OUT.is_terminal:
    OUT.width = 200  # a pipe has no width; tables in a log should not be folded to 80 columns


class Exit(IntEnum):
    """What the process ends with."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    FORBIDDEN = 4
    NOT_FOUND = 5


class CliError(ControlPlaneError):
    """Something the command line itself found out; `exit_code` says how the process ends."""

    def __init__(self, message: str, hint: str = "", exit_code: Exit = Exit.FAILED) -> None:
        super().__init__("cli", message, hint)
        self.exit_code = exit_code


def exit_code_of(error: ControlPlaneError) -> Exit:
    """The exit code for an error of our tree."""
    if isinstance(error, CliError):
        return error.exit_code
    if error.code in ("unreachable", "no_json") or isinstance(error, Unavailable | TooManyRequests):
        return Exit.UNREACHABLE
    if isinstance(error, Unauthorised | Forbidden):
        return Exit.FORBIDDEN
    if isinstance(error, NotFound):
        return Exit.NOT_FOUND
    if isinstance(error, BadRequest | SettingsError):
        return Exit.USAGE
    return Exit.FAILED


def show_error(error: ControlPlaneError) -> None:
    """One or two sentences: what happened, and what to do next."""
    ERR.print(f"[bold red]error:[/] {_plain(error.message)}")
    if error.hint:
        ERR.print(f"  {_plain(error.hint)}", style="dim")


def _plain(text: str) -> str:
    # Brackets in a message are text, not Rich markup.
    return text.replace("[", "\\[")
