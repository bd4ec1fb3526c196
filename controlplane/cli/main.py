"""`kvdeck`: the command line. Each module adds its verbs; errors of our tree end as a sentence and an exit code."""

from __future__ import annotations

import sys

import typer

from controlplane.cli import (
    act,
    alert,
    backup,
    check,
    deeds,
    desired,
    doctor,
    engine_host,
    explain,
    gameday,
    identify,
    inspection,
    look,
    policy,
    quarantine,
    record,
    replay,
    serve,
    setup,
    spec,
    steer,
    token,
    top,
    up,
    whatif,
)
from controlplane.cli.exits import CliError, Exit, exit_code_of, show_error
from controlplane.errors import ControlPlaneError
from engine.errors import EngineError

app = typer.Typer(
    name="kvdeck",
    help="The operator's deck for prefix KV caches of hybrid-attention models. Begin with `kvdeck up`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for module in (
    up,
    serve,
    setup,
    look,
    record,
    top,
    explain,
    inspection,
    doctor,
    gameday,
    act,
    deeds,
    steer,
    desired,
    policy,
    alert,
    backup,
    token,
    identify,
    check,
    quarantine,
    whatif,
):
    module.register(app)
app.command("engine")(engine_host.engine)
app.command("replay")(replay.replay)
app.command("spec")(spec.spec)


def main() -> None:
    """Runs the command line and ends the process with one of `Exit`."""
    try:
        app()
    except ControlPlaneError as error:
        show_error(error)
        sys.exit(exit_code_of(error))
    except EngineError as error:  # of a model, a size or a codec that a verb was given
        refused = CliError(f"{error}", "", Exit.USAGE)
        show_error(refused)
        sys.exit(refused.exit_code)
    except OSError as error:  # of a file or folder that a verb was given
        shown = CliError(
            f"{error.filename or 'The system'}: {error.strerror or error}.", "Check the path and its rights."
        )
        show_error(shown)
        sys.exit(shown.exit_code)


if __name__ == "__main__":
    main()
