"""The retention policy: asks the store to delete what is past its time."""

from __future__ import annotations

from typing import Any

from controlplane.clock import Clock
from controlplane.store.session import Store


def trim_history(store: Store, name: str, trigger: str, *, dry_run: bool, clock: Clock) -> dict[str, Any]:
    """Runs one bounded round of retention. A dry run deletes nothing."""
    raise NotImplementedError
