"""Whatever is asked in whatever order, what is served is of one run: bit-equal to an uninterrupted run of its cuts."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_support import DEPTH, do_not_wait_for_the_disk
from exactness import PATIENT_S, logits_of_calls, the_model
from huggingface_support import page_cuts, some_tokens, uninterrupted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import CacheEngine, CommandRequest, EngineConfig
from engine.integrations.huggingface import Generation, PrefixCache, spec_of
from engine.integrations.synthetic import use_one_thread
from engine.schedule.publish import CommitResult

PAGE_TOKENS = 32  # a multiple of DeepSeek-V4's ratios: many boundaries in few tokens
MIB = 1 << 20
EXAMPLES = {"gpt_oss": 4 * DEPTH, "deepseek_v4": 2 * DEPTH, "qwen3_next": 2 * DEPTH}

Cuts = tuple[int, ...]

NEW = st.sampled_from([1, 2, 40])  # tokens generated: some fill pages
ASK = st.tuples(st.just("ask"), st.sampled_from([40, 101, 128, 150]), st.sampled_from([1, 30, 70]), NEW)
FOLLOW = st.tuples(st.just("follow"), st.integers(0, 3), st.sampled_from([1, 30, 40]), NEW)
AGAIN = st.tuples(st.just("again"), st.integers(0, 3), st.integers(40, 230), NEW)
SEND = st.tuples(st.just("send"), st.sampled_from(["evict", "compress", "host", "disk"]), st.integers(0, 9))
RESTART = st.tuples(st.just("restart"))
STEPS = st.lists(st.one_of(ASK, FOLLOW, FOLLOW, AGAIN, AGAIN, AGAIN, SEND, SEND, RESTART), min_size=5, max_size=8)
COMMANDS: dict[str, tuple[str, dict[str, Any]]] = {
    "evict": ("evict", {"descendants": True}),
    "compress": ("compress", {"codec": "lossless"}),
    "host": ("offload", {"tier": "host"}),
    "disk": ("offload", {"tier": "disk"}),
}


class World:
    """One engine with its model, and of everything that was committed the cuts by which it was computed."""

    def __init__(self, model: str, folder: Path) -> None:
        self.model = the_model(model)
        self.spec = _spec(model)
        self.config = EngineConfig(
            gpu_bytes=4 * MIB, host_bytes=4 * MIB, disk_bytes=64 * MIB, data_dir=folder, spans=False,
            prefill_tokens_per_s=50.0,
        )  # fmt: skip
        self.commits: list[tuple[np.ndarray, CommitResult]] = []
        self.checkpoints: dict[bytes, Cuts] = {}
        self.pages: dict[bytes, set[Cuts]] = defaultdict(set)
        self.sequences: list[np.ndarray] = []
        self.reused_tokens = 0
        self.start()

    def start(self) -> None:
        self.engine = CacheEngine(self.spec, self.config)
        commit = self.engine.commit

        def recorded(tokens: np.ndarray, *args: Any, **kwargs: Any) -> CommitResult:
            result = commit(tokens, *args, **kwargs)
            self.commits.append((np.array(tokens), result))
            return result

        self.engine.commit = recorded  # type: ignore[method-assign]
        self.prefix_cache = PrefixCache(self.model, self.engine)

    # -- steps ------------------------------------------------------------------------------------------------------

    def ask(self, shared: int, rest: int, new_tokens: int) -> None:
        """A prompt that leaves a trunk at some token; the rest depends on its length alone."""
        self.request(np.concatenate([some_tokens(200)[:shared], some_tokens(rest, seed=100 + rest)]), new_tokens)

    def follow(self, which: int, rest: int, new_tokens: int) -> None:
        """The next turn of a conversation."""
        earlier = self.sequences[which % len(self.sequences)][:220]
        self.request(np.concatenate([earlier, some_tokens(rest, seed=rest)]), new_tokens)

    def again(self, which: int, n: int, new_tokens: int) -> None:
        """An earlier sequence up to some token, generated ones included: what was decoded once is now prompt."""
        self.request(self.sequences[which % len(self.sequences)][:n], new_tokens)

    def send(self, name: str, which: int) -> None:
        ids = sorted(row["prefix.id"] for row in self.engine.snapshot())
        if ids:
            kind, arguments = COMMANDS[name]
            arguments = {"prefix_ids": [ids[which % len(ids)]], **arguments}
            self.engine.execute(CommandRequest(id="c", kind=kind, arguments=arguments, actor="test"))

    def restart(self) -> None:
        self.engine.close()
        self.start()

    # -- a request and its truth ------------------------------------------------------------------------------------

    def request(self, prompt: np.ndarray, new_tokens: int) -> None:
        self.commits.clear()
        with logits_of_calls(self.model) as logits:
            made = self.prefix_cache.generate(
                prompt, max_new_tokens=new_tokens, do_sample=False, deadline_s=PATIENT_S
            )  # fmt: skip
        self.last = made
        self.reused_tokens += made.usable_tokens
        self.sequences.append(made.sequence)
        self.note(self.cuts_of(made, logits))

    def cuts_of(self, made: Generation, logits: list[torch.Tensor]) -> Cuts:
        """The cuts of the uninterrupted run that the request is bit-equal to."""
        hit, end = made.usable_tokens, made.prompt_tokens - 1
        own = [cut for cut in page_cuts(end, PAGE_TOKENS) if cut > hit]
        own += range(made.prompt_tokens, len(made.sequence))
        candidates = self.candidates(made)
        for cuts in candidates:
            _, truth = uninterrupted(self.model, made.sequence[:-1], (*cuts, *own))
            if all(map(torch.equal, logits[-len(own) :], truth[-len(own) :])):
                return (*cuts, *own)
        raise AssertionError(f"a hit of {hit} tokens is of none of the runs {candidates}")

    def candidates(self, made: Generation) -> set[Cuts]:
        """By which cuts the state before the hit may have been computed: a checkpoint's are known. Of pages, several
        runs may have been accepted one after the other; a replay stands on one of them."""
        if not made.usable_tokens:
            return {()}
        at = made.sequence[: made.usable_tokens].tobytes()
        return self.pages[at] if made.replay_tokens else {self.checkpoints[at]}

    def note(self, cuts: Cuts) -> None:
        for tokens, result in self.commits:
            if result.outcome != "admitted":
                continue
            for boundary in result.checkpoints:
                self.checkpoints[tokens[:boundary].tobytes()] = _until(cuts, boundary)
            for page_end in range(PAGE_TOKENS, len(tokens) + 1, PAGE_TOKENS):
                self.pages[tokens[:page_end].tobytes()].add(_until(cuts, page_end))


def _until(cuts: Cuts, position: int) -> Cuts:
    return tuple(cut for cut in cuts if cut <= position)


@cache
def _spec(model: str) -> Any:
    return spec_of(the_model(model), page_tokens=PAGE_TOKENS)


@pytest.mark.timeout(300 * DEPTH)
@pytest.mark.parametrize("model", EXAMPLES)
def test_what_is_served_is_of_one_run_whatever_the_order_of_requests(monkeypatch, model):
    use_one_thread()
    do_not_wait_for_the_disk(monkeypatch)
    reused = []

    @settings(
        max_examples=EXAMPLES[model], deadline=None, derandomize=True, database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    @given(STEPS)
    def run(steps: list[tuple[Any, ...]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = World(model, Path(folder))
            try:
                world.ask(101, 30, 70)
                for name, *arguments in steps:
                    getattr(world, name)(*arguments)
                assert world.engine.check() == []
            finally:
                world.engine.close()
            reused.append(world.reused_tokens)

    run()
    assert sum(reused) > 100 * EXAMPLES[model], "hardly anything was reused: nothing is proven"


@pytest.mark.parametrize("model", ["gpt_oss", "mixed"])
def test_no_replay_runs_over_tokens_that_were_decoded_one_by_one(model):
    """A replay makes a call a page: other calls, other last bits. It goes as far as pages were computed so."""
    use_one_thread()
    with tempfile.TemporaryDirectory() as folder:
        world = World(model, Path(folder))
        try:
            world.ask(101, 1, 70)
            world.again(0, 165, 1)  # the prompt's last whole page ends at 96
            assert (world.last.usable_tokens, world.last.explanation.reason) == (101, "replay_crosses_cuts")
            assert world.last.replay_tokens == 0
            world.again(0, 100, 1)
            assert world.last.usable_tokens == 96
            assert world.last.replay_tokens == 32
        finally:
            world.engine.close()
