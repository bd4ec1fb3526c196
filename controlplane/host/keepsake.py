"""What the agent remembers over a restart: the last settings, the newest epoch, and what became of commands.

One small JSON file in the engine's data folder, published by write, fsync, rename. No prompt text and no token ids.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_OUTCOMES = 1000


@dataclass(slots=True, kw_only=True)
class Kept:
    """The remembered facts. `desired` is the document last applied or refused, None before any."""

    desired: dict[str, Any] | None = None
    revision: int = 0
    epoch: int = 0
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)  # command id -> its report, oldest first
    unposted: list[str] = field(default_factory=list)  # ids of outcomes that the control plane has not confirmed


class Keepsake:
    """Owner of the file. Not safe to share between threads: the agent holds its lock around every call."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "agent.json"
        self.kept = self._load()

    def remember_desired(self, document: Mapping[str, Any], revision: int) -> None:
        """The settings to start with next time, control plane or not."""
        self.kept.desired, self.kept.revision = dict(document), revision
        self._save()

    def remember_epoch(self, epoch: int) -> None:
        """The newest leadership seen; older ones are refused from here on, also after a restart."""
        if epoch > self.kept.epoch:
            self.kept.epoch = epoch
            self._save()

    def remember_outcome(self, command_id: str, report: Mapping[str, Any]) -> None:
        """What became of a command; kept until confirmed, and then among the last 1000, to know it when redelivered."""
        self.kept.outcomes[command_id] = dict(report)
        self.kept.unposted.append(command_id)
        for old in list(self.kept.outcomes)[: max(0, len(self.kept.outcomes) - MOST_OUTCOMES)]:
            if old not in self.kept.unposted:
                del self.kept.outcomes[old]
        self._save()

    def confirm_outcome(self, command_id: str) -> None:
        """The control plane has it."""
        if command_id in self.kept.unposted:
            self.kept.unposted.remove(command_id)
            self._save()

    def _load(self) -> Kept:
        try:
            document = json.loads(self._path.read_text())
        except FileNotFoundError:
            return Kept()
        except (OSError, ValueError):
            # A damaged file must not keep the engine from serving; it is set aside for whoever wants to look.
            self._path.replace(self._path.with_suffix(".damaged"))
            return Kept()
        known = {name: document[name] for name in Kept.__dataclass_fields__ if name in document}
        return Kept(**known)

    def _save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self._path.with_suffix(".new")
        document = {name: getattr(self.kept, name) for name in Kept.__dataclass_fields__}
        with temporary.open("w") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
