"""The gate: which pages of a commit are admitted. Asks the admission rule; keeps no page and frees none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from engine.consistency.admission import AdmissionRule, AdmitAll, Admitted, Offer, SecondTouch, admission_rule
from engine.consistency.lease import Lease

_NOBODY = -1


class Gate:
    """Guarded by the engine lock."""

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._rule: AdmissionRule = AdmitAll()
        self._anonymous = count(_NOBODY - 1, -1)

    @property
    def rule(self) -> str:
        return self._rule.name

    def set_rule(self, name: str, ghost_pages: int) -> None:
        """From the next commit on. What a rule remembers stays while the rule does. Raises `ConfigError`."""
        if name != self._rule.name:
            self._rule = admission_rule(name, ghost_pages)
        elif isinstance(self._rule, SecondTouch):
            self._rule.resize(ghost_pages)

    def offer(self, space: str, tokens: bytes, pages: int, held_pages: int, lease: Lease | None) -> Admitted:
        """What of a commit is admitted. Without a lease every commit is a request of its own."""
        if isinstance(self._rule, AdmitAll) or pages <= held_pages:
            return Admitted(pages)
        request = lease.lease_id if lease is not None else next(self._anonymous)
        return self._rule.offer(Offer(pages, held_pages, request, lambda: self._keys(space, tokens, pages, held_pages)))

    def foresee(self, space: str, tokens: bytes, pages: int, held_pages: int) -> int:
        """How many pages a commit of these tokens would be admitted now: where a checkpoint would be kept."""
        if isinstance(self._rule, AdmitAll) or pages <= held_pages:
            return pages
        offer = Offer(pages, held_pages, _NOBODY, lambda: self._keys(space, tokens, pages, held_pages))
        return self._rule.foresee(offer).pages

    def _keys(self, space: str, tokens: bytes, pages: int, held_pages: int) -> Sequence[int]:
        """Names of the paths that end at pages [held_pages, pages): each hashes the one before it and its own tokens.

        They are compared within this process only, by a rule to whom a collision costs one page kept too early.
        """
        step, key = self._page_bytes, hash(space)
        found = []
        for page in range(pages):
            key = hash((key, tokens[page * step : (page + 1) * step]))
            if page >= held_pages:
                found.append(key)
        return found
