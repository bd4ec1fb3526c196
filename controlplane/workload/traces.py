"""Recorded workloads: Mooncake and Qwen-Bailian JSONL, read a line at a time.

Both name each block of a prompt by an id that stands for everything up to its end; no text is in them. Here an id
becomes a block of tokens: equal ids give equal tokens, different ids different ones.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from controlplane.errors import ControlPlaneError
from controlplane.workload.request import Request, Tokens

BLOCK_CANDIDATES = (512, 16)  # Mooncake's block and Qwen-Bailian's
PROBE_LINES = 100
TIME_UNITS = {"ms": 1e-3, "s": 1.0}
MAX_HASH_ID = 1 << 62
_MASK_31 = np.uint64((1 << 31) - 1)


class TraceError(ControlPlaneError):
    """A trace cannot be read, or one of its lines is broken. Names the file, the line and what is wrong with it."""

    status = 400

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        where = f"{path}, line {line}" if line is not None else str(path)
        hint = "Correct or cut that line; what came before it was used." if line is not None else ""
        super().__init__("trace_broken", f"{where}: {problem}.", hint)
        self.path = path
        self.line = line
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One line. `at_s` is in seconds since the trace's own zero; `session` is "" where the trace names none."""

    line: int
    at_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]
    session: str


class Trace:
    """A trace file, iterable as often as needed; nothing of it is kept in memory.

    `block_tokens` and `time_unit` ("ms" or "s") are guessed from the first lines unless given. Iterating raises
    `TraceError` at a broken line, after everything before it was delivered; so does a file that cannot be opened.
    """

    def __init__(self, path: Path, *, block_tokens: int | None = None, time_unit: str | None = None) -> None:
        self.path = path
        if block_tokens is not None and block_tokens < 2:
            raise TraceError(path, None, f"a block of {block_tokens} tokens is impossible; it must be at least 2")
        if time_unit is not None and time_unit not in TIME_UNITS:
            raise TraceError(path, None, f"time unit {time_unit!r} is unknown; known: {', '.join(TIME_UNITS)}")
        probe = self._probe() if block_tokens is None or time_unit is None else []
        self.block_tokens = block_tokens or _guess_block_tokens(probe)
        self.time_unit = time_unit or _guess_time_unit(probe)

    def __iter__(self) -> Iterator[TraceRequest]:
        sessions: dict[str, str] = {}
        is_empty = True
        with self._open() as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    is_empty = False
                    yield self._parse(number, text, sessions)
        if is_empty:
            raise TraceError(self.path, None, "holds no request")

    def requests(self, namespace: str = "default", limit: int | None = None) -> Iterator[Request]:
        """The trace with tokens, at most `limit` requests, made one at a time."""
        for record in itertools.islice(self, limit):
            yield Request(
                at_s=record.at_s,
                namespace=namespace,
                session=record.session,
                prompt=self.tokens_of(record),
                output=output_of(record),
            )

    def tokens_of(self, request: TraceRequest) -> Tokens:
        """The prompt, int32 [input_tokens]: ids expanded, the last block cut.

        Where a trace leaves a last partial block without an id, its tokens are this request's own.
        """
        ids = np.asarray(request.hash_ids, dtype=np.uint64)
        tokens = _expand(ids, self.block_tokens)[: request.input_tokens]
        missing = request.input_tokens - len(tokens)
        return np.concatenate([tokens, _unique(request.line, 1, missing)]) if missing else tokens

    def _open(self) -> IO[bytes]:
        try:
            return self.path.open("rb")
        except OSError as error:
            raise TraceError(self.path, None, f"cannot be opened: {error.strerror or error}") from error

    def _probe(self) -> list[Mapping[str, Any]]:
        """The first good lines; a broken one is left for the reading proper, where its number is reported."""
        good: list[Mapping[str, Any]] = []
        with self._open() as file:
            for text in itertools.islice(file, PROBE_LINES):
                try:
                    record = json.loads(text)
                except (ValueError, RecursionError):
                    continue
                if isinstance(record, dict) and isinstance(record.get("hash_ids"), list):
                    good.append(record)
        return good

    def _parse(self, number: int, text: bytes, sessions: dict[str, str]) -> TraceRequest:
        try:
            record = _record(text)
            hash_ids = _hash_ids(record)
            input_tokens = _count(record, "input_length")
            _check_cover(hash_ids, input_tokens, self.block_tokens)
            return TraceRequest(
                line=number,
                at_s=_timestamp(record) * TIME_UNITS[self.time_unit],
                input_tokens=input_tokens,
                output_tokens=_count(record, "output_length"),
                hash_ids=hash_ids,
                session=_session(record, sessions),
            )
        except _Problem as problem:
            raise TraceError(self.path, number, str(problem)) from None


class _Problem(Exception):
    """What is wrong with a line, before its file and number are known."""


def output_of(request: TraceRequest) -> Tokens:
    """The request's output, int32 [output_tokens]: no other request has it.

    Traces do not say what a model answered, and the next turn's ids need not continue it.
    """
    return _unique(request.line, 2, request.output_tokens)


def _record(text: bytes) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Problem(f"not JSON ({error})") from None
    if not isinstance(record, dict):
        raise _Problem(f"a JSON {type(record).__name__}, not an object")
    return record


def _required(record: Mapping[str, Any], key: str) -> Any:
    if key not in record:
        raise _Problem(f"the key {key!r} is missing")
    return record[key]


def _count(record: Mapping[str, Any], key: str) -> int:
    value = _required(record, key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _Problem(f"{key} is {value!r}; it must be a whole number from 0")
    if value >= 1 << 31:
        raise _Problem(f"{key} is {value!r}; it must be below 2**31")
    return value


def _timestamp(record: Mapping[str, Any]) -> float:
    value = _required(record, "timestamp")
    # `not >= 0` rather than `< 0`: JSON as Python reads it may hold NaN.
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e15:
        raise _Problem(f"timestamp is {value!r}; it must be a number from 0")
    return float(value)


def _hash_ids(record: Mapping[str, Any]) -> tuple[int, ...]:
    value = _required(record, "hash_ids")
    if not isinstance(value, list):
        raise _Problem(f"hash_ids is {type(value).__name__}, not a list")
    for item in value:
        if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < MAX_HASH_ID:
            raise _Problem(f"hash_ids holds {item!r}; ids are whole numbers from 0 to 2**62 - 1")
    return tuple(value)


def _check_cover(hash_ids: tuple[int, ...], input_tokens: int, block_tokens: int) -> None:
    """Every whole block needs its id; an id for the partial block at the end is optional, further ids are cut."""
    whole = input_tokens // block_tokens
    if len(hash_ids) < whole:
        raise _Problem(
            f"hash_ids has {len(hash_ids)} ids, too few for input_length {input_tokens}: "
            f"{whole} whole blocks of {block_tokens} tokens"
        )


def _session(record: Mapping[str, Any], sessions: dict[str, str]) -> str:
    """`session_id`, or the first chat of the chain that `parent_chat_id` names (-1 or null: none)."""
    if record.get("session_id") is not None:
        return str(record["session_id"])
    if record.get("chat_id") is None:
        return ""
    chat, parent = str(record["chat_id"]), str(record.get("parent_chat_id"))
    root = sessions.get(parent, parent) if parent not in ("-1", "None") else chat
    sessions[chat] = root
    return root


def _guess_block_tokens(probe: list[Mapping[str, Any]]) -> int:
    """The candidate that explains most lines: as many ids as the prompt has blocks, the partial one included."""

    def explained(block: int) -> int:
        lengths = ((r.get("input_length"), len(r["hash_ids"])) for r in probe)
        return sum(isinstance(n, int) and -(-n // block) == ids for n, ids in lengths)

    return max(BLOCK_CANDIDATES, key=explained)


def _guess_time_unit(probe: list[Mapping[str, Any]]) -> str:
    """Qwen-Bailian counts seconds (and has chats); Mooncake counts whole milliseconds."""
    seconds = any("chat_id" in r or isinstance(r.get("timestamp"), float) for r in probe)
    return "s" if seconds else "ms"


def _expand(ids: np.ndarray[Any, np.dtype[np.uint64]], block_tokens: int) -> Tokens:
    """int32 [n * block_tokens]. The first two tokens of a block spell its id, so that no two ids can collide."""
    offsets = np.arange(block_tokens, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    blocks = (ids[:, None] * np.uint64(0xBF58476D1CE4E5B9)) ^ offsets
    blocks *= np.uint64(0x94D049BB133111EB)
    blocks >>= np.uint64(33)
    blocks[:, 0] = ids & _MASK_31
    blocks[:, 1] = ids >> np.uint64(31)
    return blocks.astype(np.int32).ravel()


def _unique(line: int, salt: int, count: int) -> Tokens:
    return np.random.default_rng((line, salt)).integers(0, 1 << 31, count, dtype=np.int32)
