"""`python -m dashboard`: everything is imported first, then Streamlit serves `script/deck.py`.

Streamlit ends a script run in the middle when a person clicks on; were that the run that imports our modules, they
would stay half imported for the life of the process.

It also collects all garbage after every run, also of a part that refreshes, which looks at every object there is: with
ten people who look, that was seven eighths of the processor time of this process. Python collects by itself; and the
objects of the modules, some 200,000 that never are garbage, are put aside first.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from streamlit.web import cli

import dashboard.app
from controlplane.errors import SettingsError
from dashboard import oidc
from dashboard.control import settings

SCRIPT = Path(dashboard.app.__file__).parent / "script" / "deck.py"
FLAGS = (
    "--server.headless=true",
    "--server.fileWatcherType=none",
    "--runner.postScriptGC=false",
    "--browser.gatherUsageStats=false",
    "--client.showErrorDetails=none",
    "--client.showErrorLinks=false",
    "--client.toolbarMode=minimal",
    # Streamlit's own red would say "bad" in every bar and button.
    "--theme.light.primaryColor=#1B6FB5",
    "--theme.dark.primaryColor=#4FA3E3",
)


def main() -> None:
    """Runs until it is told to stop; further arguments are Streamlit's, such as --server.port."""
    try:
        secrets = oidc.secrets_file(settings())
    except SettingsError as error:
        sys.exit(f"kvdeck dashboard: {error}")
    more = [f"--secrets.files={secrets}"] if secrets else []
    gc.collect()
    gc.freeze()
    sys.argv = ["streamlit", "run", str(SCRIPT), *FLAGS, *more, *sys.argv[1:]]
    cli.main(prog_name="streamlit")


if __name__ == "__main__":
    main()
