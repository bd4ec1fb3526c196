"""`python -m controlplane.cli.healthy URL`: the health check of the images. Ends with 0 if the address answers 200.

Not a verb: it runs every few seconds in every container, and the verbs take a second to load.
"""

from __future__ import annotations

import sys
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

PATIENCE_SECONDS = 4.0


def healthy(url: str) -> str:
    """What is wrong with the answer; empty if nothing is."""
    try:
        # A container's own port is never behind a proxy, whatever the environment says.
        with build_opener(ProxyHandler({})).open(url, timeout=PATIENCE_SECONDS) as answer:
            return "" if answer.status == 200 else f"status {answer.status}"
    except (URLError, OSError, ValueError) as error:
        return str(error)


def main() -> None:
    """Ends the process with 0 or 1, and with 2 if it was called wrongly."""
    if len(sys.argv) != 2:
        sys.stderr.write("one argument: the address that must answer 200\n")
        sys.exit(2)
    if wrong := healthy(sys.argv[1]):
        sys.stderr.write(f"{sys.argv[1]}: {wrong}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
