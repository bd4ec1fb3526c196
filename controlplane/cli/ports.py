"""Whether a port can be listened on, said before a server fails on it."""

from __future__ import annotations

import socket

from controlplane.cli.exits import CliError


def require_free(host: str, port: int, what: str, flag: str) -> None:
    """Raises CliError, naming the port and the flag to change it, if it cannot be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do: a closing one is no obstacle
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CliError(
                f"Port {port} for {what} is not free on {host} ({error.strerror}).",
                f"Stop what uses it, or choose another with {flag}.",
            ) from error
