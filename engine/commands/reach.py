"""What commands work on, and what each of them asks about a prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.commands.ticket import BadCommand, CommandRequest, Ticket
from engine.config import Mode
from engine.memory.drill import Drill
from engine.memory.holding import Tier
from engine.schedule.ledger import Ledger, PrefixNode
from engine.schedule.queues import Form, FormQueues
from engine.schedule.recovery import Recovery
from engine.schedule.reform import Reformer

MOVED_ON = "version_moved_on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What commands take from the engine's settings, as they are when the command runs."""

    codec: Callable[[], str]
    mode: Callable[[], Mode]
    foresee: Callable[[Mapping[str, Any]], dict[str, Any]]
    timeout_s: float
    scrub_bytes_per_s: float
    drill: Drill | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The parts of an engine that commands reach: byte work goes through the queues by form."""

    ledger: Ledger
    queues: FormQueues
    recovery: Recovery
    reformer: Reformer
    choices: Choices

    def run(self, form: Form, work: Callable[[], Any]) -> Any:
        """Waits for its turn in the form's queue -> what the work gave. Raises QueueFull, and what the work raises."""
        return self.queues[form].submit(work).result()


def ids_of(ticket: Ticket) -> list[str]:
    """The prefixes that a command names. Raises BadCommand."""
    request: CommandRequest = ticket.request
    ids = request.arguments.get("prefix_ids")
    if not isinstance(ids, Iterable) or isinstance(ids, str):
        raise BadCommand(f"{request.kind} needs prefix_ids, a list of prefix ids; got {ids!r}")
    return [str(prefix_id) for prefix_id in ids]


def tier_below(ticket: Ticket) -> Tier:
    """Where a command offloads to: the host unless it says disk. Raises BadCommand."""
    tier = str(ticket.arguments.get("tier") or Tier.HOST)
    if tier not in (Tier.HOST, Tier.DISK):
        raise BadCommand(f"tier {tier!r} is nowhere to offload to; host or disk")
    return Tier(tier)


def moved_on(ticket: Ticket, prefix_id: str, node: PrefixNode | None) -> str:
    """Why a prefix is not the one that the operator saw; empty when it is. Under the lock."""
    if node is None:
        return "unknown_prefix"
    expected = (ticket.arguments.get("expect_versions") or {}).get(prefix_id)
    return MOVED_ON if expected is not None and int(expected) != node.record.version else ""


def path_of(node: PrefixNode | None) -> list[PrefixNode]:
    """The prefix and its ancestors, the end first."""
    path = []
    while node is not None and node.parent is not None:
        path.append(node)
        node = node.parent
    return path


def subtree_of(node: PrefixNode) -> list[PrefixNode]:
    """A prefix and all below it, leaves first. Under the lock."""
    stack, found = [node], []
    while stack:
        found.append(stack.pop())
        stack.extend(found[-1].children.values())
    return found[::-1]


def roots(ledger: Ledger) -> list[PrefixNode]:
    """The prefixes at the top of the tree. Under the lock."""
    return [node for node in ledger.nodes.values() if node.parent is not None and node.parent.parent is None]
