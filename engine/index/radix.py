"""Layer 1: a radix tree over token bytes. Knows tokens and pages; no bytes of KV, no tiers.

An edge is compared by memcmp; the only digest of a node is computed once, when it is created, from a copy of its
parent's hasher. A child is found by the bytes of its first page. Guarded by the engine lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from engine.index.node import Node, Path, Stretch, last_of, nodes_of, prefix_id_of, seed

R = TypeVar("R")
TOKEN_BYTES = 4
STRETCH_NODES = 32
"""So many nodes in a row are gathered to a stretch: a walk of n steps becomes one of n / 32, and 32 at its end."""


@dataclass(frozen=True, slots=True)
class Match(Generic[R]):
    """The longest common path: its nodes are all matched wholly but perhaps the last; `pages` in all."""

    path: Path[R]
    pages: int

    @property
    def nodes(self) -> list[Node[R]]:
        """All of them, from the top: as many as the path is long, so not for every request."""
        return nodes_of(self.path)

    @property
    def last(self) -> Node[R] | None:
        return last_of(self.path)

    @property
    def last_is_whole(self) -> bool:
        last = self.last
        return last is None or last.last_page == self.pages


class RadixIndex(Generic[R]):
    """One tree a namespace. `new_root` makes the record of a root, which stands for the empty prefix."""

    def __init__(self, page_tokens: int, fingerprint: str, new_root: Callable[[str], R]) -> None:
        self.page_bytes = page_tokens * TOKEN_BYTES
        self._fingerprint = fingerprint
        self._new_root = new_root
        self._roots: dict[str, Node[R]] = {}

    def match(self, namespace: str, tokens: bytes) -> Match[R]:
        """Longest common run of whole pages. No hashing of content, no allocation but the path."""
        path: list[Node[R] | Stretch[R]] = []
        node = self._roots.get(namespace)
        if node is None:
            return Match(path, 0)
        step, position, end = self.page_bytes, 0, len(tokens)
        while position + step <= end:
            child = node.children.get(tokens[position : position + step])
            if child is None:
                break
            stretch = child.stretch
            if stretch is not None and stretch.nodes[0] is child and tokens.startswith(stretch.edge, position):
                path.append(stretch)
                position += len(stretch.edge)
                node = stretch.nodes[-1]
                continue
            path.append(child)
            if not tokens.startswith(child.edge, position):
                position += self._common_bytes(child.edge, tokens, position)
                break
            position += len(child.edge)
            node = child
        return Match(path, position // step)

    def _common_bytes(self, edge: bytes, tokens: bytes, position: int) -> int:
        """Whole pages of `edge` that `tokens` shares at `position`, in bytes: binary search, each probe a memcmp."""
        step = self.page_bytes
        low, high = 1, min(len(edge), len(tokens) - position) // step
        while low < high:  # the first page is known to match; the whole edge is known not to, or tokens end before it
            middle = (low + high + 1) // 2
            if edge[: middle * step] == tokens[position : position + middle * step]:
                low = middle
            else:
                high = middle - 1
        return low * step

    def append(
        self, namespace: str, parent: Node[R] | None, edge: bytes, make_record: Callable[[str, str, int], R]
    ) -> Node[R]:
        """Hang a new node under `parent` (None: the root). `make_record` gets id, parent's id and first page."""
        top = parent or self._root(namespace)
        hasher = top.hasher.copy()
        hasher.update(edge)
        first_page = top.last_page
        parent_id = prefix_id_of(top.hasher) if parent is not None else ""
        record = make_record(prefix_id_of(hasher), parent_id, first_page)
        node = Node(edge, top, hasher, first_page, len(edge) // self.page_bytes, {}, record)
        top.children[edge[: self.page_bytes]] = node
        self._gather(node)
        return node

    def _gather(self, node: Node[R]) -> None:
        """Make a stretch of a new node and those above it, once there are enough that are of none."""
        found = [node]
        walk = node.parent
        while len(found) < STRETCH_NODES and walk is not None and walk.parent is not None and walk.stretch is None:
            found.append(walk)
            walk = walk.parent
        if len(found) == STRETCH_NODES:
            found.reverse()
            edge = b"".join(each.edge for each in found)
            stretch = Stretch(found, edge, found[0].first_page, node.last_page)
            for each in found:
                each.stretch = stretch

    def split(self, node: Node[R], pages: int, make_record: Callable[[str, str], R]) -> Node[R]:
        """Cut `node` after `pages` of its pages; returns the new upper node. The lower half keeps its identity.

        `make_record(prefix_id, parent_id)` makes the upper half's record.
        """
        parent = node.parent
        if parent is None or not 0 < pages < node.n_pages:
            raise ValueError(f"cannot cut a node of {node.n_pages} pages after {pages}")
        cut = pages * self.page_bytes
        hasher = parent.hasher.copy()
        hasher.update(node.edge[:cut])
        parent_id = prefix_id_of(parent.hasher) if parent.parent is not None else ""
        upper = Node(
            node.edge[:cut], parent, hasher, node.first_page, pages, {}, make_record(prefix_id_of(hasher), parent_id)
        )
        parent.children[upper.edge[: self.page_bytes]] = upper
        node.edge, node.parent = node.edge[cut:], upper
        node.first_page, node.n_pages = node.first_page + pages, node.n_pages - pages
        upper.children[node.edge[: self.page_bytes]] = node
        if (stretch := node.stretch) is not None:
            upper.stretch = stretch
            stretch.nodes.insert(stretch.nodes.index(node), upper)
        return upper

    def remove(self, node: Node[R]) -> None:
        """Take a leaf out of the tree. Its stretch is one no more."""
        parent = node.parent
        if node.children or parent is None:
            raise ValueError("only a leaf can leave the tree")
        if node.stretch is not None:
            for each in node.stretch.nodes:
                each.stretch = None
        del parent.children[node.edge[: self.page_bytes]]
        node.parent = None

    def tokens_of(self, node: Node[R]) -> bytes:
        """All token bytes from the start to the end of `node`."""
        edges = []
        walk: Node[R] | None = node
        while walk is not None:
            edges.append(walk.edge)
            walk = walk.parent
        return b"".join(reversed(edges))

    def id_with_tail(self, node: Node[R], tail: bytes) -> str:
        """The id of the prefix that ends `tail` (less than a page of tokens) after `node`."""
        hasher = node.hasher.copy()
        hasher.update(tail)
        return prefix_id_of(hasher)

    def path_id(self, space: str, match: Match[R]) -> str:
        """What names the path that ends where `match` does: the id of the prefix that ends there, or would, and `space`
        for the empty one. Hashes what it shares of the last node, if that is not all."""
        node = match.last
        if node is None:
            return space
        if node.last_page == match.pages or node.parent is None:
            return prefix_id_of(node.hasher)
        hasher = node.parent.hasher.copy()
        hasher.update(node.edge[: (match.pages - node.first_page) * self.page_bytes])
        return prefix_id_of(hasher)

    def walk(self) -> Iterator[Node[R]]:
        """Every node, parents before children."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _root(self, namespace: str) -> Node[R]:
        root = self._roots.get(namespace)
        if root is None:
            root = Node(b"", None, seed(namespace, self._fingerprint), 0, 0, {}, self._new_root(namespace))
            self._roots[namespace] = root
        return root
