"""Real models: a window, tail or recurrent state that is missing, another's or cut is refused by name, never served.

After every damage three things hold: the validation that looks after the object has failed in a span with its reason
(or, where only reading shows it, the object went to quarantine), what is generated then is bit by bit what no reuse
would have given, and the engine's books are clean.
"""

from __future__ import annotations

import damage
import pytest
import torch
from victim import EARLIER, END, SIBLING, TOKENS, everything_is_exact, victim
from ward import RECURRENT, TAIL, WINDOW, Ward

from engine.errors import StateMismatch
from engine.memory.state import NewState


def mine(ward: Ward) -> damage.Checkpoint:
    return ward.checkpoint(TOKENS, END)


def before(ward: Ward) -> damage.Checkpoint:
    return ward.checkpoint(EARLIER, len(EARLIER) - 1)


def theirs(ward: Ward) -> damage.Checkpoint:
    return ward.checkpoint(SIBLING, END)


BOUNDARY = [
    ("deepseek_v4", WINDOW, "window_fresh", "window_missing"),
    ("gemma3", WINDOW, "window_fresh", "window_missing"),
    ("deepseek_v4", TAIL, "tail_intact", "tail_missing"),
    ("qwen3_next", RECURRENT, "window_fresh", "recurrent_missing"),
]
boundary_objects = pytest.mark.parametrize(("name", "kind", "validation", "reason"), BOUNDARY)


@boundary_objects
@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("drop", [damage.lose_block, damage.forget_block])
def test_a_dropped_boundary_object_is_missed_by_name(make_ward, name, kind, validation, reason, drop, replay) -> None:
    ward = victim(make_ward, name, replay=replay)
    drop(ward, mine(ward), kind)
    found = ward.serve(TOKENS)
    assert (validation, reason) in ward.failed()
    assert found.usable_tokens < END
    assert found.replay_tokens == (ward.spec.replay_tokens if found.replay_tokens else 0)
    everything_is_exact(ward)


@boundary_objects
def test_a_lost_boundary_object_is_captured_again(make_ward, name, kind, validation, reason) -> None:
    ward = victim(make_ward, name)
    damage.lose_block(ward, mine(ward), kind)
    assert ward.serve(TOKENS).usable_tokens < END
    assert ward.serve(TOKENS).usable_tokens == END


@boundary_objects
@pytest.mark.parametrize("source", [before, theirs])
def test_boundary_objects_of_another_position_or_prefix_are_known_by_their_identity(
    make_ward, name, kind, validation, reason, source
) -> None:
    """Of the same prefix a page earlier, or of another prefix at the same position: as long as the right ones."""
    ward = victim(make_ward, name, replay=False)
    other = EARLIER if source is before else SIBLING
    a, b = mine(ward), source(ward)
    here = next(r for r in ward.path(TOKENS) if a.checkpoint_id in r.checkpoints)
    there = next(r for r in ward.path(other) if b.checkpoint_id in r.checkpoints)
    damage.exchange_checkpoints(ward, (here, a), (there, b))
    assert ward.serve(TOKENS).usable_tokens < END
    assert ward.serve(other).usable_tokens < len(other) - 1
    assert (validation, reason) in ward.failed()
    everything_is_exact(ward)


@boundary_objects
@pytest.mark.parametrize("source", [before, theirs])
def test_a_boundary_object_in_another_checkpoint_is_known_by_its_owner(
    make_ward, name, kind, validation, reason, source
) -> None:
    ward = victim(make_ward, name, replay=False)
    damage.exchange_blocks(ward, mine(ward), source(ward), kind)
    assert ward.serve(TOKENS).usable_tokens < END
    assert validation in {failed for failed, _ in ward.failed()}
    everything_is_exact(ward)


@boundary_objects
@pytest.mark.parametrize("source", [before, theirs])
def test_the_bytes_of_another_boundary_object_are_found_on_read(
    make_ward, name, kind, validation, reason, source
) -> None:
    """A stale ring has the right length and the right dtype. Only its bytes are another position's."""
    ward = victim(make_ward, name)
    damage.overwrite(ward, mine(ward).blocks[kind], source(ward).blocks[kind])
    found = ward.serve(TOKENS)
    assert found.usable_tokens < END
    assert ward.quarantined() == [(str(kind), "checksum_mismatch")]
    assert (validation, "checksum_mismatch") in ward.failed()
    assert len(ward.transitions_to("QUARANTINED")) == 1
    everything_is_exact(ward)
    assert ward.serve(TOKENS).usable_tokens == END


@pytest.mark.parametrize(
    ("section", "last_row_only"), [("overlap", False), ("overlap", True), ("buffer", False), ("buffer", True)]
)
def test_a_tail_without_overlap_or_with_a_shorter_buffer_is_found_on_read(make_ward, section, last_row_only) -> None:
    ward = victim(make_ward)
    damage.zero_section(ward, mine(ward), section, last_row_only=last_row_only)
    assert ward.serve(TOKENS).usable_tokens < END
    assert ward.quarantined() == [(str(TAIL), "checksum_mismatch")]
    assert ("tail_intact", "checksum_mismatch") in ward.failed()
    everything_is_exact(ward)


def cut_last_row(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:-1]


@pytest.mark.parametrize("section", ["window", "overlap", "buffer", "state"])
@pytest.mark.parametrize("how", ["dropped", "cut"])
def test_a_capture_that_lacks_rows_is_never_published(make_ward, section, how) -> None:
    """A tail without its overlap, a shorter buffer or window, no recurrent state: refused whole, nothing is kept."""
    ward = make_ward("qwen3_next" if section == "state" else "deepseek_v4")
    with ward.prefill(TOKENS) as prefill:
        cache_map, cache = ward.cache._map, prefill.past_key_values
        objects = cache_map.boundary(cache, END)
        key = next(k for k, t in objects.items() if k.section == section and len(t))
        if how == "dropped":
            del objects[key]
        else:
            objects[key] = cut_last_row(objects[key])
        state = NewState(
            start_tokens=0, end_tokens=END, entries=cache_map.entries(cache, 0, END), checkpoints={END: objects}
        )
        held = ward.ids(), ward.tiers.gpu.live_bytes
        with pytest.raises(StateMismatch, match=section):
            ward.engine.commit(TOKENS[:END], state, namespace="other")
        assert (ward.ids(), ward.tiers.gpu.live_bytes) == held
    assert ward.serve(TOKENS, namespace="other").usable_tokens == 0
    ward.assert_clean()
