"""Token ids in, token bytes out: int32, little endian, without a Python loop where the caller's type allows."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.errors import BadNamespace, StateMismatch

if TYPE_CHECKING:
    import torch

NAMESPACE_LONGEST = 128


def check_namespace(namespace: str) -> str:
    """The namespace. Raises `BadNamespace`: it becomes part of ids, files, spans and rows and must fit them all."""
    if not isinstance(namespace, str):
        raise BadNamespace(f"a namespace is a string, not a {type(namespace).__name__}")
    if not (0 < len(namespace) <= NAMESPACE_LONGEST and namespace.isprintable()):
        shown = namespace[:40].encode("ascii", "backslashreplace").decode()
        raise BadNamespace(
            f"namespace {shown!r} ({len(namespace)} characters) must be 1 to {NAMESPACE_LONGEST} printable characters"
        )
    return namespace


Tokens: TypeAlias = "npt.NDArray[np.integer[Any]] | array[int] | Sequence[int] | torch.Tensor"
"""A numpy array, `array.array`, a torch tensor, or (slowly) a list of ints; one dimension."""

_INT32 = np.dtype("<i4")


def token_bytes(tokens: Tokens) -> bytes:
    """The bytes the index compares. Raises `StateMismatch` for more than one dimension, non-integers or ids that do
    not fit 32 bits. An int32 array is taken as it is: negative ids are odd, not harmful."""
    try:
        found = np.asarray(tokens.numpy(force=True) if hasattr(tokens, "numpy") else tokens)
    except ValueError as error:
        raise StateMismatch("tokens are a ragged sequence; they must be integers in one dimension") from error
    if found.size == 0:
        return b""
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise StateMismatch(
            f"tokens are {found.dtype} of shape {list(found.shape)}; they must be integers in one dimension"
        )
    if found.dtype.itemsize != 4 or found.dtype.kind == "u":
        low, high = int(found.min()), int(found.max())
        if low < 0 or high > 0x7FFFFFFF:
            raise StateMismatch(f"token ids run from {low} to {high}; they must be 0 to 2,147,483,647")
    return found.astype(_INT32, copy=False).tobytes()
