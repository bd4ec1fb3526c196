"""Real models: nothing is reused by another model, in another namespace, or once the weights have changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from huggingface_support import some_tokens, tiny_model
from victim import DISK, END, TOKENS, everything_is_exact, on_disk, restarted, victim

from engine.errors import ModelMismatch


def test_the_same_tokens_in_another_namespace_are_another_prefix(make_ward) -> None:
    ward = victim(make_ward)
    found = ward.serve(TOKENS, namespace="tenant-b")
    assert (found.usable_tokens, found.explanation.reason) == (0, "new_content")
    assert ward.serve(TOKENS, namespace="tenant-b").usable_tokens == END
    assert not {r.prefix_id for r in ward.path(TOKENS)} & {r.prefix_id for r in ward.path(TOKENS, "tenant-b")}
    ward.assert_clean()


# -- another model over the same folder -------------------------------------------------------------------------------


def other_rope(model: Any) -> Any:
    config = copy.deepcopy(model.config)
    for rope in (config.rope_parameters, *config.rope_parameters.values()):
        if isinstance(rope, dict) and "rope_theta" in rope:
            rope["rope_theta"] *= 2
    found = type(model)(config).eval()
    found.load_state_dict(model.state_dict())
    return found.requires_grad_(False)


def other_weight(model: Any) -> Any:
    found = copy.deepcopy(model)
    next(p for n, p in found.named_parameters() if n.endswith("o_proj.weight")).view(-1)[3] += 1e-3
    return found


class Adapter(torch.nn.Module):
    """A low-rank update beside a linear layer, as PEFT hangs it on."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Parameter(torch.full((2, base.in_features), 0.01), requires_grad=False)
        self.up = torch.nn.Parameter(torch.full((base.out_features, 2), 0.01), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


def with_adapter(model: Any) -> Any:
    found = copy.deepcopy(model)
    found.model.layers[0].self_attn.q_proj = Adapter(found.model.layers[0].self_attn.q_proj)
    return found


OTHERS: dict[str, Callable[[str, Any], Any]] = {
    "another seed": lambda name, model: tiny_model(name, seed=2),
    "another dtype": lambda name, model: tiny_model(name, dtype=torch.bfloat16),
    "another rope base": lambda name, model: other_rope(model),
    "one weight changed": lambda name, model: other_weight(model),
    "an adapter": lambda name, model: with_adapter(model),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_another_model_over_the_same_folder_reuses_nothing(make_ward, tmp_path, name, other) -> None:
    ward = on_disk(make_ward, tmp_path, name)
    ward.engine.close()
    files = len(ward.files())
    assert files
    second = make_ward(model=OTHERS[other](name, ward.model), data_dir=tmp_path, **DISK)
    assert second.spec.fingerprint != ward.spec.fingerprint
    assert (second.engine.adoption.prefixes, second.engine.adoption.orphans) == (0, files)
    found = second.serve(TOKENS)
    assert (found.usable_tokens, found.explanation.reason) == (0, "new_content")
    assert second.serve(TOKENS).usable_tokens == END
    second.assert_clean()


def test_a_file_of_another_model_among_ours_is_left_out(make_ward, tmp_path) -> None:
    ward = on_disk(make_ward, tmp_path / "ours")
    other = on_disk(make_ward, tmp_path / "theirs", model=tiny_model("deepseek_v4", seed=2))
    ward.engine.close()
    other.engine.close()
    strangers = other.files()
    for path in strangers:
        (tmp_path / "ours" / "objects" / path.name).write_bytes(path.read_bytes())
    again = restarted(make_ward, ward)
    assert again.engine.adoption.orphans == len(strangers)
    assert again.serve(TOKENS).usable_tokens == END
    everything_is_exact(again)


# -- weights that change under an attached model ----------------------------------------------------------------------


def in_place(model: Any) -> None:
    next(model.parameters()).mul_(1.01)


def through_data(model: Any) -> None:
    weight = next(p for n, p in model.named_parameters() if n.endswith("o_proj.weight"))
    weight.data = weight.data * 1.01


def merged_through_data(model: Any) -> None:
    """As merging an adapter does it: the same storage, and no version counter moves."""
    weight = next(p for n, p in model.named_parameters() if n.endswith("o_proj.weight"))
    weight.data += 0.01


def replaced(model: Any) -> None:
    attention = model.model.layers[0].self_attn
    attention.o_proj.weight = torch.nn.Parameter(attention.o_proj.weight * 1.01, requires_grad=False)


def adapted(model: Any) -> None:
    attention = model.model.layers[0].self_attn
    attention.q_proj = Adapter(attention.q_proj)


@pytest.mark.parametrize("change", [in_place, through_data, merged_through_data, replaced, adapted])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_nothing_is_reused_once_the_weights_have_changed(make_ward, name, change) -> None:
    ward = victim(make_ward, name)
    change(ward.model)
    for _ in range(2):
        found = ward.serve(TOKENS)
        assert (found.usable_tokens, found.explanation.reason) == (0, "weights_changed")
    ward.assert_clean()


def test_what_was_computed_with_changed_weights_is_never_kept(make_ward) -> None:
    ward = victim(make_ward, "llama")
    weight = ward.model.model.layers[0].self_attn.q_proj.weight
    kept = weight.clone()
    weight.mul_(1.01)
    fresh = some_tokens(END + 1, seed=21)
    assert ward.serve(fresh).usable_tokens == 0
    assert ward.path(fresh) == []
    weight.copy_(kept)
    assert ward.serve(fresh).usable_tokens == 0
    assert ward.serve(TOKENS).usable_tokens == END
    ward.assert_clean()


def test_a_model_put_in_training_mode_is_refused(make_ward) -> None:
    ward = victim(make_ward, "llama")
    ward.model.train()
    with pytest.raises(ModelMismatch, match="training mode"):
        ward.prefill(TOKENS)
    ward.assert_clean()
    ward.model.eval()
    assert ward.serve(TOKENS).usable_tokens == END
