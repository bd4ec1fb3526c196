"""What the sampler remembers of paths changes what it costs and nothing of what it finds."""

from __future__ import annotations

from hashlib import sha256
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.consistency import paths
from engine.consistency.curve import CurveSampler

PAGE = 4
NEVER = 1 << 60
REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.lists(st.integers(0, 1), max_size=12),  # a page each: a small tree, with many paths met again
        st.integers(0, 12),  # pages that the lease gives
        st.lists(st.integers(0, 1), max_size=6),  # the answer's pages
        st.integers(0, PAGE - 1),  # tokens past the last whole page of the prompt
        st.sampled_from(["leased", "partly admitted", "without a lease", "not committed"]),
    ),
    max_size=60,
)


def tokens_of(pages):
    return np.repeat(np.asarray(pages, dtype=np.int32) + 7, PAGE)


def prefix_id(namespace, pages):
    return sha256(f"{namespace}{pages}".encode()).hexdigest()


def replayed(requests, every):
    """The curves after these requests; they are read `every` so many, too: a reading forgets and watches more."""
    sampler = CurveSampler(PAGE, samples=8, namespaces=1, fits_pages=20)
    for number, (namespace, prompt, pages, answer, rest, how) in enumerate(requests, 1):
        pages = min(pages, len(prompt))
        told = np.concatenate([tokens_of(prompt), tokens_of([1])[:rest]])
        lease = SimpleNamespace(
            namespace=namespace, lease_id=number, prompt_tokens=len(told), lcp_tokens=0, usable_tokens=0, pages=pages,
            node=SimpleNamespace(record=SimpleNamespace(prefix_id=prefix_id(namespace, prompt[:pages])))
            if pages else None,
        )  # fmt: skip
        sampler.asked(told.tobytes(), lease)
        whole = [*prompt, *answer] if not rest else [*prompt, 1, *answer]
        if how != "not committed":
            admitted = prefix_id(namespace, whole) if how != "partly admitted" else ""
            held = None if how == "without a lease" else lease
            sampler.kept(namespace, tokens_of(whole).tobytes(), held, admitted)
        if number % every == 0:
            sampler.document()
    return sampler.document(), sampler


@settings(max_examples=60, deadline=None)
@given(requests=REQUESTS, room=st.sampled_from([5, 40, 1 << 20]), every=st.integers(1, 40))
def test_the_curves_are_those_of_a_sampler_that_sums_up_every_page_again(requests, room, every):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "REMEMBERED_PAGES", room)
        patch.setattr(paths, "LONG_PAGES", 1)
        found, sampler = replayed(requests, every)
        assert sum(len(path.hashes) for path in sampler._paths._paths.values()) == sampler._paths._pages <= room
        patch.setattr(paths, "LONG_PAGES", NEVER)
        assert replayed(requests, every)[0] == found


def test_a_long_path_that_is_hit_again_is_not_summed_up_again(monkeypatch):
    sampler = CurveSampler(PAGE, samples=512, namespaces=1, fits_pages=1000)
    summed = []
    of = sampler._sums.of
    monkeypatch.setattr(sampler._sums, "of", lambda tokens, first: summed.append(first) or of(tokens, first))
    prompt = tokens_of(range(300)).tobytes()
    node = SimpleNamespace(record=SimpleNamespace(prefix_id="p"))
    for number in range(1, 4):
        hit = {"node": node, "pages": 290} if number > 1 else {"node": None, "pages": 0}
        figures = {"prompt_tokens": 1200, "lcp_tokens": 0, "usable_tokens": 0}
        sampler.asked(prompt, SimpleNamespace(namespace="a", lease_id=number, **figures, **hit))
        sampler.document()
    assert summed == [0, 0, 290]
