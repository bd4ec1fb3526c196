"""What a commit refuses, and what it must not mix up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_support import fork, prompt

from engine import Tier
from engine.errors import BadNamespace, StateMismatch


def test_a_prompt_shorter_than_a_page_is_refused_and_an_empty_one_too(make_rig):
    rig = make_rig()
    for tokens in (prompt(63), prompt(0)):
        assert rig.commit(tokens, []).reason == "shorter_than_a_page"
    assert rig.look(prompt(0)).usable == 0
    assert rig.ids == []


def test_a_state_that_starts_past_what_is_held_is_refused(make_rig):
    rig = make_rig()
    tokens = prompt(6 * rig.page)
    assert rig.commit(tokens, start=2 * rig.page).reason == "gap_before_start"
    assert rig.ids == []


def bad_states(rig, tokens):
    good = rig.model.prefill(tokens, 2 * rig.page, [len(tokens)])
    key = next(k for k in good.entries if k.part == "csa")
    whole = rig.model.prefill(tokens, 0, [len(tokens)])
    window = next(k for k in good.checkpoints[len(tokens)] if k.section == "window")
    objects = good.checkpoints[len(tokens)]
    yield "a start inside a page", replace(good, start_tokens=2 * rig.page - 2)
    yield "a start before the first token", replace(good, start_tokens=-rig.page)
    yield "an end that is not the tokens'", replace(good, end_tokens=len(tokens) - 1)
    yield "entries from another start", replace(good, entries=whole.entries)
    yield "a tensor missing", replace(good, entries={k: t for k, t in good.entries.items() if k != key})
    yield "a row too few", replace(good, entries={**good.entries, key: good.entries[key][:-1]})
    yield "another dtype", replace(good, entries={**good.entries, key: good.entries[key].float()})
    yield "another width", replace(good, entries={**good.entries, key: good.entries[key][:, :-1]})
    yield "no boundary objects", replace(good, checkpoints={len(tokens): {}})
    yield (
        "a window row too many",
        replace(
            good, checkpoints={len(tokens): {**objects, window: torch.cat([objects[window], objects[window][:1]])}}
        ),
    )


WAYS = (
    "a start inside a page", "a start before the first token", "an end that is not the tokens'",
    "entries from another start", "a tensor missing", "a row too few", "another dtype", "another width",
    "no boundary objects", "a window row too many",
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_state_that_does_not_fit_raises_and_keeps_nothing(make_rig, way):
    rig = make_rig()
    tokens = prompt(6 * rig.page + 5)
    rig.commit(tokens[: 3 * rig.page], [])
    used = rig.ledger.tiers.gpu.live_bytes
    state = dict(bad_states(rig, tokens))[way]
    with pytest.raises(StateMismatch):
        rig.engine.commit(tokens, state)
    assert rig.ledger.tiers.gpu.live_bytes == used
    assert len(rig.ids) == 1
    rig.assert_clean()


def test_tensors_are_refused_by_an_engine_that_only_keeps_books_and_wanted_by_one_that_keeps_bytes(make_rig):
    books, tokens = make_rig(materialise=False), prompt(128)
    with pytest.raises(StateMismatch, match="no tensors"):
        books.commit(tokens)
    assert books.engine.commit(tokens, checkpoints=[128]).outcome == "admitted"
    assert books.engine.acquire(tokens).usable_tokens == 128
    books.assert_clean()
    with pytest.raises(StateMismatch, match="NewState"):
        make_rig().engine.commit(tokens)


def test_a_commit_after_its_lease_expired_is_still_right(make_rig):
    rig = make_rig(lease_s=1.0)
    tokens = prompt(4 * rig.page)
    rig.commit(tokens)
    longer = fork(tokens, len(tokens), 7 * rig.page, 1)
    lease = rig.engine.acquire(longer)
    state = rig.model.prefill(longer, lease.resume_tokens // rig.page * rig.page, [len(longer)])
    rig.clock.advance(2.0)
    rig.engine.tick()
    rig.command("evict", prefix_ids=rig.ids)
    assert rig.engine.commit(longer, state, lease=lease).reason == "gap_before_start"
    lease.release()
    assert rig.look(longer).usable == 0
    rig.assert_clean()


def test_offload_moves_objects_and_a_commit_of_the_same_tokens_brings_them_back(make_rig):
    rig = make_rig(host_bytes=1 << 20)
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    rig.command("offload", prefix_ids=[prefix_id], tier="host")
    record = rig.node(prefix_id).record
    assert record.held_bytes(Tier.GPU) == 0
    assert rig.commit(tokens).outcome == "admitted"
    assert record.state == "FULL"
    assert record.held_bytes(Tier.HOST) == 0
    assert rig.look(tokens, deadline_s=0).wrong_bytes == 0
    rig.assert_clean()


def test_equal_prompts_in_two_namespaces_are_two_prefixes(make_rig):
    rig = make_rig()
    tokens = prompt(4 * rig.page)
    odd = ("a", "ä/../%s", "a b", "x" * 128)
    for namespace in odd:
        assert rig.look(tokens, namespace=namespace).usable == 0
        rig.commit(tokens, namespace=namespace)
    for namespace in odd:
        found = rig.look(tokens, namespace=namespace)
        assert (found.usable, found.wrong_bytes) == (len(tokens), 0)
    assert len(rig.ids) == len(odd)
    rig.assert_clean()


@pytest.mark.parametrize("namespace", ["", "a\0b", "a\nb", "x" * 129, "\ud800"])
def test_a_namespace_that_would_not_fit_everywhere_is_refused_and_nothing_is_kept(make_rig, namespace):
    rig = make_rig()
    with pytest.raises(BadNamespace, match="printable"):
        rig.look(prompt(2 * rig.page), namespace=namespace)
    with pytest.raises(BadNamespace):
        rig.commit(prompt(2 * rig.page), namespace=namespace)
    rig.assert_clean()
    assert rig.ids == []


def test_what_a_model_computed_from_a_lossy_hit_is_not_published(make_rig):
    rig = make_rig("small-gpt-oss", codec="int8")
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    assert rig.command("compress", prefix_ids=[prefix_id], codec="int8").outcome["compressed"] == 1
    longer = fork(tokens, len(tokens), 6 * rig.page, 1)
    with rig.engine.acquire(longer) as lease:
        assert (lease.usable_tokens, lease.explanation.codec) == (len(tokens), "int8")
        state = rig.model.prefill(longer, 0, [len(longer)])
        result = rig.engine.commit(longer, state, lease=lease)
    assert (result.outcome, result.reason) == ("refused", "lossy_basis")
    assert rig.look(longer).usable == len(tokens)


def test_the_largest_token_id_is_a_token_like_any_other(make_rig):
    rig = make_rig()
    tokens = np.full(130, 2**31 - 1, dtype=np.int64)
    rig.commit(tokens.astype(np.int32))
    with rig.engine.acquire(tokens) as lease:
        assert lease.usable_tokens == 130
