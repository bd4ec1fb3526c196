"""Real models: an object that is missing, old, swapped, cut or another model's is refused by name and never served.

After every damage three things hold: the validation that looks after the object has failed in a span with its reason
(or, where only reading shows it, the object went to quarantine), what is generated then is bit by bit what no reuse
would have given, and the engine's books are clean.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import damage
import numpy as np
import pytest
import torch
from damage import INDEXER, KV, PAGE, RECURRENT, TAIL, WINDOW, Ward
from huggingface_support import some_tokens, tiny_model

from engine.errors import CorruptObject, ModelMismatch, StateMismatch
from engine.integrations.synthetic import use_one_thread
from engine.memory.state import NewState
from engine.model.objects import ObjectKind

END = 3 * PAGE + 9
"""Where the victim's state ends: inside a page, an entry of every ratio and a group of four."""
TOKENS = some_tokens(END + 1)
EARLIER = TOKENS[: 2 * PAGE + 1]
"""The same prefix at an earlier position, where its siblings branch."""
SIBLING = np.concatenate([TOKENS[: 2 * PAGE], some_tokens(PAGE, seed=8), TOKENS[3 * PAGE :]])
"""As long as the victim, with other tokens in its third page and the same tail."""


@pytest.fixture
def make_ward() -> Iterator[Callable[..., Ward]]:
    use_one_thread()
    made: list[Ward] = []

    def make(*args: Any, **config: Any) -> Ward:
        made.append(Ward(*args, **config))
        return made[-1]

    yield make
    for ward in made:
        ward.engine.close()


def victim(make_ward: Callable[..., Ward], name: str = "deepseek_v4", **config: Any) -> Ward:
    """Three prompts that share two pages, each with a checkpoint at its end, and one where they branch."""
    ward = make_ward(name, **config)
    for tokens in (TOKENS, SIBLING, EARLIER):
        ward.serve(tokens)
    assert ward.serve(TOKENS).usable_tokens == END
    return ward


def everything_is_exact(ward: Ward) -> None:
    """Twice, so that what the first run left behind is looked at too."""
    for _ in range(2):
        for tokens in (TOKENS, SIBLING, EARLIER):
            ward.serve(tokens)
    ward.assert_clean()


def mine(ward: Ward) -> damage.Checkpoint:
    return ward.checkpoint(TOKENS, END)


def before(ward: Ward) -> damage.Checkpoint:
    return ward.checkpoint(EARLIER, len(EARLIER) - 1)


def theirs(ward: Ward) -> damage.Checkpoint:
    return ward.checkpoint(SIBLING, END)


# -- boundary objects: window, tail, recurrent state ------------------------------------------------------------------

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


# -- span objects: indexer entries and history ------------------------------------------------------------------------

SPANS = [
    ("deepseek_v4", KV, "compressed_complete", "pages_missing"),
    ("deepseek_v4", INDEXER, "indexer_synced", "indexer_missing"),
    ("deepseek_v32", INDEXER, "indexer_synced", "indexer_missing"),
    ("mixed", INDEXER, "indexer_synced", "indexer_missing"),
    ("llama", KV, "compressed_complete", "pages_missing"),
]
span_objects = pytest.mark.parametrize(("name", "kind", "validation", "reason"), SPANS)


@span_objects
@pytest.mark.parametrize("page", ["first", "last"])
def test_dropped_pages_are_missed_by_name(make_ward, name, kind, validation, reason, page) -> None:
    ward = victim(make_ward, name)
    record = ward.path(TOKENS)[0 if page == "first" else -1]
    damage.lose_span(ward, record, kind)
    found = ward.serve(TOKENS)
    assert (validation, reason) in ward.failed()
    assert found.usable_tokens <= record.first_page * PAGE
    everything_is_exact(ward)
    assert ward.serve(TOKENS).usable_tokens == END


@span_objects
def test_a_single_missing_page_is_missed_by_name(make_ward, name, kind, validation, reason) -> None:
    ward = victim(make_ward, name)
    damage.lose_last_page(ward, ward.path(TOKENS)[0], kind)
    assert ward.serve(TOKENS).usable_tokens == 0
    assert (validation, reason) in ward.failed()
    everything_is_exact(ward)


@span_objects
def test_permuted_pages_are_found_on_read(make_ward, name, kind, validation, reason) -> None:
    ward = victim(make_ward, name)
    damage.permute(ward, ward.path(TOKENS)[0].spans[kind])
    assert ward.serve(TOKENS).usable_tokens == 0
    assert ward.quarantined() == [(str(kind), "checksum_mismatch")]
    assert (validation, "checksum_mismatch") in ward.failed()
    assert len(ward.transitions_to("QUARANTINED")) == 1
    everything_is_exact(ward)
    assert ward.serve(TOKENS).usable_tokens == END


@span_objects
def test_pages_of_another_prefix_are_found_on_read(make_ward, name, kind, validation, reason) -> None:
    ward = victim(make_ward, name)
    damage.overwrite(ward, ward.path(TOKENS)[-1].spans[kind], ward.path(SIBLING)[-1].spans[kind])
    assert ward.serve(TOKENS).usable_tokens <= 2 * PAGE
    assert ward.quarantined() == [(str(kind), "checksum_mismatch")]
    assert (validation, "checksum_mismatch") in ward.failed()
    everything_is_exact(ward)


@pytest.mark.parametrize("name", ["deepseek_v4", "deepseek_v32", "mixed"])
@pytest.mark.parametrize("which", ["indexer one behind", "history one ahead"])
def test_an_indexer_of_another_version_of_the_history_is_not_served(make_ward, name, which) -> None:
    ward = victim(make_ward, name)
    spans = ward.path(TOKENS)[-1].spans
    if which == "indexer one behind":
        spans[INDEXER].built_from -= 1
    else:
        spans[KV].content_version += 1
    assert ward.serve(TOKENS).usable_tokens <= 2 * PAGE
    assert ("indexer_synced", "indexer_behind") in ward.failed()
    everything_is_exact(ward)


@pytest.mark.parametrize(("codec", "change"), [("none", {"version": 99}), ("int8", {"version": 99}),
                                               ("int8", {"codec": "zip"})])  # fmt: skip
@pytest.mark.parametrize("name", ["deepseek_v4", "llama"])
def test_pages_of_a_codec_nobody_can_read_are_not_served(make_ward, name, codec, change) -> None:
    ward = victim(make_ward, name, codec=codec, code_compressed=True)
    record = ward.path(TOKENS)[0]
    if codec != "none":
        ward.command("compress", prefix_ids=[record.prefix_id])
        assert record.spans[KV].gpu.coded
    damage.replace_meta(record.spans[KV], **change)
    assert ward.serve(TOKENS).usable_tokens == 0
    assert ("compressed_complete", "codec_unknown") in ward.failed()
    everything_is_exact(ward)


@pytest.mark.parametrize("codec", ["int8", "fp8", "int4"])
@pytest.mark.parametrize("name", ["llama", "deepseek_v4"])
def test_coded_pages_without_their_scales_are_found_on_read(make_ward, name, codec) -> None:
    ward = victim(make_ward, name, codec=codec, code_compressed=True)
    ward.command("compress", prefix_ids=ward.ids())
    record = ward.path(TOKENS)[0]
    assert record.spans[KV].gpu.coded
    damage.zero_scales(ward, record, codec)
    assert ward.serve(TOKENS).usable_tokens == 0
    assert ward.quarantined() == [(str(KV), "checksum_mismatch")]
    assert ("compressed_complete", "checksum_mismatch") in ward.failed()
    ward.assert_clean()


@pytest.mark.parametrize("change", [{"group": 64}, {"compressed": False}, {"codec": "fp8"}])
def test_coded_pages_with_the_description_of_others_are_not_served(make_ward, change) -> None:
    ward = victim(make_ward, codec="int8", code_compressed=True)
    ward.command("compress", prefix_ids=ward.ids())
    damage.replace_meta(ward.path(TOKENS)[0].spans[KV], **change)
    assert ward.serve(TOKENS).usable_tokens == 0
    ward.assert_clean()


def test_a_quarantined_prefix_is_refused_until_it_is_computed_again(make_ward) -> None:
    ward = victim(make_ward)
    damage.permute(ward, ward.path(TOKENS)[0].spans[KV])
    with ward.engine.acquire(TOKENS[:END]) as lease, pytest.raises(CorruptObject):
        lease.load()
    assert next(r.state for r in ward.path(TOKENS)) == "QUARANTINED"
    assert ward.serve(TOKENS).usable_tokens == 0
    assert ("compressed_complete", "pages_missing") in ward.failed()
    assert ward.serve(TOKENS).usable_tokens == END
    ward.assert_clean()


# -- identity ---------------------------------------------------------------------------------------------------------


def test_the_same_tokens_in_another_namespace_are_another_prefix(make_ward) -> None:
    ward = victim(make_ward)
    found = ward.serve(TOKENS, namespace="tenant-b")
    assert (found.usable_tokens, found.explanation.reason) == (0, "new_content")
    assert ward.serve(TOKENS, namespace="tenant-b").usable_tokens == END
    assert not {r.prefix_id for r in ward.path(TOKENS)} & {r.prefix_id for r in ward.path(TOKENS, "tenant-b")}
    ward.assert_clean()


# -- files ------------------------------------------------------------------------------------------------------------

KINDS: list[ObjectKind] = [KV, INDEXER, WINDOW, TAIL]
DISK = {"disk_bytes": 64 << 20, "replay": False}


def on_disk(make_ward: Callable[..., Ward], folder: Path, name: str = "deepseek_v4", **config: Any) -> Ward:
    """The victim with everything on disk and nothing above it."""
    ward = victim(make_ward, name, data_dir=folder, **{**DISK, **config})
    ward.to_disk()
    return ward


def file_of(ward: Ward, kind: ObjectKind, boundary: int = END, tokens: np.ndarray = TOKENS) -> Path:
    """The file of one object on the victim's path: of its last pages, or of the checkpoint at its end."""
    if kind in (KV, INDEXER):
        held = ward.path(tokens)[-1].spans[kind]
    else:
        held = ward.checkpoint(tokens, boundary).blocks[kind]
    assert held.disk is not None
    assert held.gpu is None
    return next(path for path in ward.files() if path.name == held.disk.file.name)


def restarted(make_ward: Callable[..., Ward], ward: Ward, **config: Any) -> Ward:
    ward.engine.close()
    return make_ward(model=ward.model, **{**DISK, "data_dir": ward.engine.config.data_dir, **config})


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_half_there_is_never_loaded(make_ward, tmp_path, kind, restart) -> None:
    ward = on_disk(make_ward, tmp_path)
    path = file_of(ward, kind)
    if restart:
        ward.engine.close()
    damage.cut_file(path)
    if restart:
        ward = restarted(make_ward, ward)
        assert ward.engine.adoption.damaged == 1
    assert ward.serve(TOKENS).usable_tokens < END
    if not restart:
        assert ward.quarantined() == [(str(kind), "checksum_mismatch")]
        assert ("disk_reloaded", "checksum_mismatch") in ward.failed()
        assert len(ward.transitions_to("QUARANTINED")) == 1
    assert not path.exists()
    assert (tmp_path / "quarantine" / path.name).exists()
    everything_is_exact(ward)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_two_files_that_changed_places_are_known_by_what_they_hold(make_ward, tmp_path, kind, restart) -> None:
    ward = on_disk(make_ward, tmp_path)
    one, other = file_of(ward, kind), file_of(ward, kind, tokens=SIBLING)
    if restart:
        ward.engine.close()
    damage.swap_files(one, other)
    if restart:
        ward = restarted(make_ward, ward)
        assert ward.engine.adoption.damaged == 2
    for tokens in (TOKENS, SIBLING):
        assert ward.serve(tokens).usable_tokens < END
    if not restart:
        assert ward.quarantined() == [(str(kind), "checksum_mismatch")] * 2
        assert ("disk_reloaded", "checksum_mismatch") in ward.failed()
    everything_is_exact(ward)


@pytest.mark.parametrize("kind", [WINDOW, TAIL])
def test_the_file_of_an_earlier_position_is_not_taken_for_a_later_one(make_ward, tmp_path, kind) -> None:
    ward = on_disk(make_ward, tmp_path)
    early = file_of(ward, kind, boundary=2 * PAGE)
    file_of(ward, kind).write_bytes(early.read_bytes())
    assert ward.serve(TOKENS).usable_tokens < END
    assert ward.quarantined() == [(str(kind), "checksum_mismatch")]
    everything_is_exact(ward)


FOREIGN: list[dict[str, Any]] = [{"fingerprint": "0" * 64}, {"namespace": "tenant-b"}, {"built_from": 999}]


@pytest.mark.parametrize("change", FOREIGN, ids=lambda change: next(iter(change)))
@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_file_of_another_model_namespace_or_run_is_not_adopted(
    request, make_ward, tmp_path, kind, change
) -> None:
    """Their bytes under our file's name, each checksum in order: only the header says whose they are."""
    ward = on_disk(make_ward, tmp_path)
    path = file_of(ward, kind)
    ward.engine.close()
    damage.forge_file(path, pages=damage.pages_of(path) ^ 1, **change)
    ward = restarted(make_ward, ward)
    assert ward.serve(TOKENS).usable_tokens < END
    everything_is_exact(ward)


@pytest.mark.parametrize("change", [*FOREIGN, {"content_version": 999}], ids=lambda change: next(iter(change)))
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_became_another_models_under_a_running_engine_is_not_read(
    make_ward, tmp_path, kind, change
) -> None:
    ward = on_disk(make_ward, tmp_path)
    path = file_of(ward, kind)
    damage.forge_file(path, pages=damage.pages_of(path) ^ 1, **change)
    assert ward.serve(TOKENS).usable_tokens < END
    assert ward.quarantined() == [(str(kind), "checksum_mismatch")]
    everything_is_exact(ward)


@pytest.mark.parametrize("restart", [False, True])
def test_a_file_of_another_layout_version_is_not_read(make_ward, tmp_path, restart) -> None:
    ward = on_disk(make_ward, tmp_path)
    path = file_of(ward, KV)
    if restart:
        ward.engine.close()
    raw = path.read_bytes()
    assert raw.count(b"kvdeck-object-1") == 1
    path.write_bytes(raw.replace(b"kvdeck-object-1", b"kvdeck-object-2"))
    if restart:
        ward = restarted(make_ward, ward)
        assert ward.engine.adoption.damaged == 1
    assert ward.serve(TOKENS).usable_tokens < END
    everything_is_exact(ward)


@pytest.mark.parametrize("page_class", ["compressed_kv+zip", "compressed_kv+int8"])
def test_a_file_in_a_form_this_engine_does_not_know_does_not_stop_a_start(make_ward, tmp_path, page_class) -> None:
    """As a later version, or an engine whose codec pays for this model, may have written it."""
    ward = on_disk(make_ward, tmp_path)
    path = file_of(ward, KV)
    ward.engine.close()
    damage.forge_file(path, page_class=page_class)
    ward = restarted(make_ward, ward)
    assert ward.serve(TOKENS).usable_tokens < END
    everything_is_exact(ward)


def test_a_file_of_a_kind_this_engine_does_not_know_does_not_stop_a_start(make_ward, tmp_path) -> None:
    ward = on_disk(make_ward, tmp_path)
    path = file_of(ward, WINDOW)
    ward.engine.close()
    damage.forge_file(path, kind="something_new")
    path.rename(path.with_name(path.name.replace(str(WINDOW), "something_new")))
    ward = restarted(make_ward, ward)
    assert ward.serve(TOKENS).usable_tokens < END
    everything_is_exact(ward)


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
