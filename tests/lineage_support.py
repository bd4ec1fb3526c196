"""Runs of the same tokens whose bytes differ in their last bits: what the tests of lineage share."""

from __future__ import annotations

import torch

from engine import LoadedState, NewState
from engine.integrations.synthetic import SyntheticModel


class Run:
    """The synthetic model whose every byte past `at` tokens has another last bit: the same tokens in other chunks."""

    def __init__(self, spec, at, mask=1):
        self.spec, self.at, self.mask, self.model = spec, at, mask, SyntheticModel(spec)
        self.ratios = {
            s.key: s.ratio for s in (*self.model._layouts.history.segments, *self.model._layouts.indexer.segments)
        }

    def prefill(self, tokens, start=0, at=None):
        state = self.model.prefill(tokens, start, [len(tokens)] if at is None else at)
        return NewState(
            start_tokens=state.start_tokens,
            end_tokens=state.end_tokens,
            entries={key: self.flip(tensor, self.rows(key, start)) for key, tensor in state.entries.items()},
            checkpoints={b: self.boundary(b, objects) for b, objects in state.checkpoints.items()},
        )

    def truth(self, tokens, boundary, replay=0):
        truth = self.model.truth(tokens, boundary, replay)
        return LoadedState(
            boundary_tokens=boundary,
            replay_tokens=replay,
            entries={key: self.flip(tensor, self.rows(key, 0)) for key, tensor in truth.entries.items()},
            boundary=self.boundary(boundary, truth.boundary),
        )

    def rows(self, key, start):
        return max(0, self.at - start) // self.ratios[key]

    def boundary(self, b, objects):
        return {key: self.flip(tensor, 0) for key, tensor in objects.items()} if b > self.at else objects

    def flip(self, tensor, first):
        out = tensor.clone()
        out[first:].view(torch.uint8).bitwise_xor_(self.mask)
        return out

    def made(self, loaded, tokens):
        truth = self.truth(tokens, loaded.boundary_tokens, loaded.replay_tokens)
        pairs = [(truth.entries, loaded.entries), (truth.boundary, loaded.boundary)]
        return all(a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in pairs)
