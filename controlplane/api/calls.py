"""What every part of the client is made of: one read and one write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
STALE_HEADER = "X-Kvdeck-Stale"
"""On an answer that is not of now: the code of the error that would have been the answer. `Age` says how old it is."""


class Calls(ABC):
    """A part of `ControlPlaneClient`, which has the connection."""

    @abstractmethod
    def get(self, path: str, **query: Any) -> Any:
        """Any read; a query of None is left out."""

    @abstractmethod
    def _post(self, path: str, body: Mapping[str, Any], traceparent: str | None = None) -> Json: ...
