"""A node of the radix tree: a run of whole pages, and the prefix that ends at its end. And many of them as one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Generic, TypeVar

R = TypeVar("R")


def seed(namespace: str, fingerprint: str) -> Any:
    """The hasher every prefix id of one namespace and one model starts from.

    Lengths come first: no namespace can be chosen so that it looks like another one followed by some tokens.
    """
    name, model = namespace.encode(), fingerprint.encode()
    return sha256(b"kvdeck\0%d\0%d\0%b%b" % (len(name), len(model), name, model))


def prefix_id_of(hasher: Any) -> str:
    """The first 128 bits, hexadecimal."""
    digest: bytes = hasher.digest()
    return digest[:16].hex()


@dataclass(eq=False, slots=True)
class Node(Generic[R]):
    """`edge` holds the token bytes of its pages; `hasher` has seen every token from the start to its end.

    The tree knows nothing of what hangs on `record`.
    """

    edge: bytes
    parent: Node[R] | None
    hasher: Any
    first_page: int
    n_pages: int
    children: dict[bytes, Node[R]]
    record: R
    stretch: Stretch[R] | None = None

    @property
    def last_page(self) -> int:
        return self.first_page + self.n_pages


@dataclass(eq=False, slots=True)
class Stretch(Generic[R]):
    """Consecutive nodes of one path, from the top down, that a walk along the path takes as one step.

    Each node is of one stretch at most and may branch off. What hangs on it (`leases`, `proof`) belongs to
    consistency/stretch.py; the tree knows nothing of it.
    """

    nodes: list[Node[R]]
    edge: bytes
    first_page: int
    last_page: int
    leases: int = 0
    proof: Any = None


Path = Sequence[Node[R] | Stretch[R]]
"""A way down from the root, in as few steps as there are; a list of all its nodes is one too."""


def nodes_of(path: Path[R]) -> list[Node[R]]:
    found: list[Node[R]] = []
    for step in path:
        if isinstance(step, Stretch):
            found += step.nodes
        else:
            found.append(step)
    return found


def last_of(path: Path[R]) -> Node[R] | None:
    if not path:
        return None
    step = path[-1]
    return step.nodes[-1] if isinstance(step, Stretch) else step


def path_to(path: Path[R], pages: int) -> Path[R]:
    """The path to the node that has the last of so many pages."""
    last = last_of(path)
    if last is None or last.first_page < pages:
        return path
    kept = list(path[: bisect_left(path, pages, key=_first_page)])
    step = kept[-1] if kept else None
    if isinstance(step, Stretch) and step.last_page > pages:
        kept[-1:] = step.nodes[: bisect_left(step.nodes, pages, key=_first_page)]
    return kept


def node_with(path: Path[R], page: int) -> Node[R] | None:
    """The node of a path that has this page."""
    i = bisect_right(path, page, key=_first_page) - 1
    step = path[i] if i >= 0 else None
    if step is None or page >= step.last_page:
        return None
    return node_with(step.nodes, page) if isinstance(step, Stretch) else step


def _first_page(step: Node[Any] | Stretch[Any]) -> int:
    return step.first_page
