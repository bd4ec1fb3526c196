"""What was lost, to what: each cause by the thing that causes it."""

from __future__ import annotations

import numpy as np
import pytest

from engine import CacheEngine, CommandRequest, EngineConfig, preset
from engine.model.objects import bytes_per_token
from engine.schedule.losses import LOSS_OF_GAP, LOSS_OF_REFUSAL, LOSSES, Loss
from engine.schedule.plan import GAP_REASONS
from engine.schedule.publish import REFUSALS
from engine.schedule.validation import REASONS
from engine.telemetry.registry.spans import LOSSES as REGISTERED
from tests.engine_support import SpanLog

SPEC = preset("bench-full-swa")
PAGE = SPEC.page_tokens


class Rig:
    """An engine that keeps books only, and a source of prompts."""

    def __init__(self, pages: int = 400, **config: object) -> None:
        self.log = SpanLog()
        settings = {"gpu_bytes": int(pages * PAGE * bytes_per_token(SPEC)), "materialise": False, "codec": "none"}
        self.engine = CacheEngine(SPEC, EngineConfig(**{**settings, **config}), span_processors=[self.log])  # type: ignore[arg-type]
        self.rng = np.random.default_rng(0)

    def fresh(self, pages: int = 10, extra: int = 0) -> np.ndarray:
        return self.rng.integers(0, 1 << 30, pages * PAGE + extra).astype(np.int32)

    def ask(self, tokens: np.ndarray, *, commit: bool = True, **how: object) -> dict[str, int]:
        with self.engine.acquire(tokens, **how) as lease:  # type: ignore[arg-type]
            if commit:
                self.engine.commit(tokens, None, lease=lease, checkpoints=lease.checkpoint_hints)
            self.usable = lease.usable_tokens
            return {str(cause): n for cause, n in lease.explanation.lost}

    def evict_all(self, *, policy: bool = False) -> None:
        ids = [row["prefix.id"] for row in self.engine.snapshot()]
        actor = "policy:trim" if policy else "person"
        done = self.engine.execute(CommandRequest(id="c", kind="evict", arguments={"prefix_ids": ids}, actor=actor))
        assert done.outcome["evicted"] == len(ids)


def test_what_was_never_seen_is_new_content() -> None:
    assert Rig().ask(Rig().fresh(3, 5)) == {"new_content": 3 * PAGE + 5}


def test_the_last_part_of_a_page_is_told_apart() -> None:
    rig = Rig()
    tokens = rig.fresh(3)
    rig.ask(tokens)
    assert rig.ask(np.concatenate([tokens, rig.fresh(0, 9)])) == {"part_page": 9}


def test_an_operator_s_eviction_is_told_from_pressure_and_from_a_cap() -> None:
    rig = Rig()
    tokens = rig.fresh()
    rig.ask(tokens)
    rig.evict_all()
    assert rig.ask(tokens) == {"evicted_command": 10 * PAGE}

    rig.evict_all(policy=True)
    assert rig.ask(tokens) == {"evicted_policy": 10 * PAGE}

    rig = Rig(pages=30)
    first = rig.fresh()
    for prompt in (first, rig.fresh(), rig.fresh(), rig.fresh()):
        rig.ask(prompt)
    assert rig.ask(first) == {"evicted_pressure": 10 * PAGE}

    rig = Rig(cap_prefixes=1)
    first = rig.fresh()
    rig.ask(first)
    rig.ask(rig.fresh())
    assert rig.ask(first) == {"evicted_cap": 10 * PAGE}


def test_a_namespace_at_its_own_maximum_is_a_cause_of_its_own() -> None:
    from engine.consistency.namespaces import NamespaceCap

    rig = Rig(namespace_caps={"a": NamespaceCap(max_prefixes=1)})
    tokens = rig.fresh()
    rig.ask(tokens, namespace="a")
    rig.ask(rig.fresh(), namespace="a")
    assert rig.ask(tokens, namespace="a") == {"evicted_namespace": 10 * PAGE}


def test_another_namespace_s_tokens_and_losses_are_not_told() -> None:
    rig = Rig()
    tokens = rig.fresh()
    rig.ask(tokens, namespace="a")
    assert rig.ask(tokens, namespace="b", commit=False) == {"new_content": 10 * PAGE}
    rig.evict_all()
    assert rig.ask(tokens, namespace="b", commit=False) == {"new_content": 10 * PAGE}


def test_a_prompt_that_parts_from_what_was_evicted_is_split_at_the_page() -> None:
    rig = Rig()
    tokens = rig.fresh()
    rig.ask(tokens)
    rig.evict_all()
    other = np.concatenate([tokens[: 4 * PAGE], rig.fresh(3)])
    assert rig.ask(other, commit=False) == {"evicted_command": 4 * PAGE, "new_content": 3 * PAGE}


def test_a_path_evicted_in_pieces_is_followed_through_all_of_them() -> None:
    rig = Rig()
    head = rig.fresh(4)
    whole = np.concatenate([head, rig.fresh(6)])
    rig.ask(head)
    rig.ask(whole)
    rig.evict_all()
    assert rig.ask(whole, commit=False) == {"evicted_command": 10 * PAGE}


def test_it_names_the_prefix_that_would_have_served_on() -> None:
    rig = Rig()
    tokens = rig.fresh()
    rig.ask(tokens)
    (gone,) = [row["prefix.id"] for row in rig.engine.snapshot()]
    rig.evict_all()
    rig.ask(tokens)
    rig.engine.flush_telemetry()
    span = rig.log.named("kvcache.acquire")[-1]
    assert span["kvcache.lost.prefix.id"] == gone
    assert span["kvcache.lost.evicted_command"] == 10 * PAGE


def test_what_was_evicted_below_a_place_inside_a_prefix_is_found() -> None:
    rig = Rig()
    head, one, other = rig.fresh(4), rig.fresh(3), rig.fresh(3)
    rig.ask(head)
    rig.ask(np.concatenate([head, one]))
    rig.evict_all()
    rig.ask(np.concatenate([head, other]))  # the head is now the beginning of a longer prefix
    lost = rig.ask(np.concatenate([head, one]), commit=False)
    assert lost.get("evicted_command") == 3 * PAGE


@pytest.mark.parametrize("rule", ["second_touch", "first_pages:2"])
def test_what_the_admission_rule_did_not_keep(rule: str) -> None:
    rig = Rig(admission_rule=rule)
    tokens = rig.fresh()
    rig.ask(tokens)
    kept = rig.usable
    lost = rig.ask(tokens, commit=False)
    assert kept == 0
    assert lost["admission_refused"] == 10 * PAGE - rig.usable - lost.get("checkpoint_missing", 0)
    assert lost["admission_refused"] >= 8 * PAGE


def test_the_mode_takes_what_is_known_and_leaves_the_rest_its_cause() -> None:
    rig = Rig(mode="bypass")
    tokens = rig.fresh()
    rig.ask(tokens)
    longer = np.concatenate([tokens, rig.fresh(2)])
    assert rig.ask(longer, commit=False) == {"mode": 10 * PAGE, "new_content": 2 * PAGE}


def test_a_caller_that_refuses_and_a_window_that_is_missing() -> None:
    rig = Rig()
    tokens = rig.fresh()
    rig.ask(tokens)
    assert rig.ask(tokens, commit=False, refuse="load_failed") == {"caller_refused": 10 * PAGE}
    rig = Rig(replay=False)
    with rig.engine.acquire(tokens) as lease:
        rig.engine.commit(tokens, None, lease=lease, checkpoints=())
    assert rig.ask(tokens, commit=False) == {"checkpoint_missing": 10 * PAGE}


def test_without_a_memory_all_that_is_not_known_is_new() -> None:
    rig = Rig(lost_memory_bytes=0)
    tokens = rig.fresh()
    rig.ask(tokens)
    rig.evict_all()
    assert rig.ask(tokens) == {"new_content": 10 * PAGE}


def test_every_reason_has_a_cause_and_every_cause_a_meaning() -> None:
    known = GAP_REASONS.keys() | REASONS.keys()
    assert LOSS_OF_GAP.keys() <= known
    assert LOSS_OF_REFUSAL.keys() <= REFUSALS.keys() | {"load_failed"}
    assert REFUSALS.keys() - LOSS_OF_REFUSAL.keys() == {"shorter_than_a_page"}
    failures = {"tier_unavailable", "no_room", "queue_full"}  # what is left are restores that failed
    passes = {"none", "new_content", "ok", "not_in_model", "empty_by_layout", "resident", "reloaded"}
    repairs = {"replay_rebuilds", "replay_approximates", "needs_restore"}
    assert known - LOSS_OF_GAP.keys() - passes - repairs == failures
    assert tuple(LOSSES) == tuple(Loss)
    assert tuple(map(str, Loss)) == REGISTERED
