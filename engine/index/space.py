"""Two spaces of one namespace: exact prefixes, and approximate ones that are never served as exact.

The index keys the second by a name no user's namespace can be (`check_namespace` takes printable characters only). Ids
hash that key, so the same tokens have another id there.
"""

from __future__ import annotations

_MARK = "\x1fapproximate"


def space_of(namespace: str, *, approximate: bool) -> str:
    """The index key."""
    return namespace + _MARK if approximate else namespace


def is_approximate(space: str) -> bool:
    return space.endswith(_MARK)


def namespace_of(space: str) -> str:
    """The plain namespace of an index key."""
    return space.removesuffix(_MARK)
