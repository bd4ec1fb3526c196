"""A node of the radix tree: a run of whole pages, and the prefix that ends at its end."""

from __future__ import annotations

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

    @property
    def last_page(self) -> int:
        return self.first_page + self.n_pages
