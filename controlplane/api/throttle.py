"""Wrong tokens cost a look into the database each: how many an address may bring, in bounded memory.

A secret has 256 random bits, so nobody guesses one; this keeps a broken script, or somebody who tries, from keeping the
database and the log busy. Each address has a bucket of failures that refills steadily, and each token that is known
but over (ended, revoked) has one too, wherever it comes from. While a bucket is empty, its requests are answered
without a look - except for secrets that were right a short while ago, so that an operator and a wrong script behind
one address do not lock each other out.
"""

from __future__ import annotations

import hashlib
import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from controlplane.errors import TooManyRequests

FAILURES_AT_ONCE = 20
SECONDS_A_FAILURE = 3.0
MOST_KEYS = 4096
PROVEN_SECONDS = 600.0
DENIAL_SECONDS = 60.0
"""One token that is refused one call again and again is one row of the audit in so many seconds."""


class FailureThrottle:
    """Counts failures by key and remembers what was proven. Safe to share between threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key -> failures, as of when
        self._proven: OrderedDict[bytes, float] = OrderedDict()  # digest of a secret -> when it was right

    def check(self, key: str, secret: str) -> None:
        """Raises TooManyRequests when too many failures of `key` are fresh and `secret` was not right lately."""
        now = self._clock()
        with self._lock:
            failures = self._failures(key, now)
            if failures + 1 <= FAILURES_AT_ONCE or self._was_right(secret, now):
                return
        wait_seconds = max(1, int((failures + 1 - FAILURES_AT_ONCE) * SECONDS_A_FAILURE + 0.999))
        raise TooManyRequests(
            "too_many_failures",
            f"Too many tokens from here were wrong; none is looked at for {wait_seconds} s.",
            "Correct the token first: `kvdeck token list` shows which there are.",
            retry_after_seconds=wait_seconds,
        )

    def failed(self, key: str, secret: str) -> None:
        """The secret was wrong, and counts against `key`."""
        now = self._clock()
        with self._lock:
            self._proven.pop(_digest(secret), None)
            self._buckets[key] = (min(self._failures(key, now) + 1, FAILURES_AT_ONCE), now)
            self._buckets.move_to_end(key)
            while len(self._buckets) > MOST_KEYS:
                self._buckets.popitem(last=False)

    def proved(self, secret: str) -> None:
        """A secret was right."""
        now = self._clock()
        with self._lock:
            digest = _digest(secret)
            self._proven[digest] = now
            self._proven.move_to_end(digest)
            while len(self._proven) > MOST_KEYS:
                self._proven.popitem(last=False)

    def _failures(self, key: str, now: float) -> float:
        failures, at = self._buckets.get(key, (0.0, now))
        return max(0.0, failures - (now - at) / SECONDS_A_FAILURE)

    def _was_right(self, secret: str, now: float) -> bool:
        return self._proven.get(_digest(secret), float("-inf")) > now - PROVEN_SECONDS


class Denials:
    """Which refusals of a role were told a short while ago. Safe to share between threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told: OrderedDict[str, float] = OrderedDict()

    def is_news(self, key: str) -> bool:
        """Whether this one has not been told for DENIAL_SECONDS; then it counts as told now."""
        now = self._clock()
        with self._lock:
            if now - self._told.get(key, float("-inf")) < DENIAL_SECONDS:
                return False
            self._told[key] = now
            self._told.move_to_end(key)
            while len(self._told) > MOST_KEYS:
                self._told.popitem(last=False)
            return True


def address_key(host: str) -> str:
    """Whom failures are counted for: an IPv4 address, or the /64 network of an IPv6 one, as one host has all of it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "address:unknown"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return f"address:{address.ipv4_mapped}"
        return f"address:{ipaddress.ip_network((address, 64), strict=False)}"
    return f"address:{address}"


def token_key(secret: str) -> str:
    """Whom failures of one token are counted for, wherever they come from."""
    return f"token:{_digest(secret).hex()}"


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
