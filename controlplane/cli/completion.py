"""What the shell completes beside verbs and options: engines, prefixes and policies, asked of the control plane.

A completer runs at every Tab: it waits a second at most, says nothing of what goes wrong, and then completes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from controlplane.api.client import ControlPlaneClient
from controlplane.errors import ControlPlaneError

PATIENCE_SECONDS = 1.0
MOST = 50


def complete_engines(ctx: click.Context, incomplete: str) -> list[str]:
    """Ids of engines that begin so."""
    return _ask(ctx, incomplete, lambda client: [row["id"] for row in client.engines()])


def complete_prefixes(ctx: click.Context, incomplete: str) -> list[str]:
    """Ids of prefixes that begin so; nothing before a first letter, as there are too many."""
    if not incomplete:
        return []
    engine = ctx.params.get("engine") or None

    def found(client: ControlPlaneClient) -> list[str]:
        page = client.prefixes(engine=engine, id_start=incomplete, limit=MOST)
        return [row["prefix_id"] for row in page["rows"]]

    return _ask(ctx, incomplete, found)


def complete_policies(ctx: click.Context, incomplete: str) -> list[str]:
    """Names of policies that begin so."""
    return _ask(ctx, incomplete, lambda client: [row["name"] for row in client.policies()])


def _ask(ctx: click.Context, incomplete: str, read: Callable[[ControlPlaneClient], list[str]]) -> list[str]:
    from controlplane.cli.context import DEFAULT_DATA_DIR, DEFAULT_URL, connect  # it names the completers above

    url, token = ctx.params.get("url") or DEFAULT_URL, ctx.params.get("token") or ""
    folder = Path(ctx.params.get("data_dir") or DEFAULT_DATA_DIR)
    try:
        with connect(url, token, folder, timeout_seconds=PATIENCE_SECONDS) as client:
            return sorted({word for word in read(client) if word.startswith(incomplete)})
    except ControlPlaneError:
        return []
