"""A node of the radix tree: a run of whole pages, and the prefix that ends at its end. And many of them as one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
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
    leases: int = 0
    proof: Any = None

    @property
    def last_page(self) -> int:
        return self.nodes[-1].last_page


def steps(nodes: Sequence[Node[R]], pages: int) -> Iterator[Node[R] | Stretch[R]]:
    """A path from the root, of which `pages` pages count, in as few steps as there are: whole stretches, else nodes."""
    i = 0
    while i < len(nodes):
        stretch = nodes[i].stretch
        end = i + len(stretch.nodes) if stretch is not None else 0
        if (
            stretch is not None
            and stretch.nodes[0] is nodes[i]
            and end <= len(nodes)
            and nodes[end - 1] is stretch.nodes[-1]
            and stretch.last_page <= pages
        ):
            yield stretch
            i = end
        else:
            yield nodes[i]
            i += 1


def node_with(nodes: Sequence[Node[R]], page: int) -> Node[R] | None:
    """The node of a path from the root that has this page."""
    i = bisect_right(nodes, page, key=_first_page) - 1
    return nodes[i] if i >= 0 and page < nodes[i].last_page else None


def _first_page(node: Node[Any]) -> int:
    return node.first_page
