"""Real models: a file that is cut, swapped, of another position or in another form is never loaded.

After every damage three things hold: the validation that looks after the object has failed in a span with its reason
(or, where only reading shows it, the object went to quarantine), what is generated then is bit by bit what no reuse
would have given, and the engine's books are clean.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import damage
import numpy as np
import pytest
from victim import END, SIBLING, TOKENS, everything_is_exact, on_disk, restarted
from ward import INDEXER, KV, PAGE, TAIL, WINDOW, Ward

from engine.model.objects import ObjectKind

KINDS: list[ObjectKind] = [KV, INDEXER, WINDOW, TAIL]


def file_of(ward: Ward, kind: ObjectKind, boundary: int = END, tokens: np.ndarray = TOKENS) -> Path:
    """The file of one object on the victim's path: of its last pages, or of the checkpoint at its end."""
    if kind in (KV, INDEXER):
        held = ward.path(tokens)[-1].spans[kind]
    else:
        held = ward.checkpoint(tokens, boundary).blocks[kind]
    assert held.disk is not None
    assert held.gpu is None
    return next(path for path in ward.files() if path.name == held.disk.file.name)


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
