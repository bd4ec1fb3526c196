"""The disk tier under a hostile world: damage, swaps, full and failing devices, two owners, strangers' files."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace

import numpy as np
import pytest
from engine_support import Rig, fork, prompt

from engine import CacheEngine, EngineConfig, preset
from engine.errors import ConfigError, FolderLocked
from engine.memory import diskfile

DISK = {"gpu_bytes": 1 << 20, "disk_bytes": 8 << 20}


@pytest.fixture
def on_disk(make_rig, tmp_path):
    """A rig, and the tokens of one prefix of five pages that lies on disk alone."""
    rig = make_rig(data_dir=tmp_path, **DISK)
    tokens = prompt(5 * rig.page + 9)
    prefix_id = rig.commit(tokens).prefix_id
    rig.command("offload", prefix_ids=[prefix_id], tier="disk")
    assert rig.states == {"PARTIAL_OFFLOAD": 1}
    return rig, tokens


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 4
    path.write_bytes(raw)


DAMAGE = {
    "one bit flipped": flip,
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "emptied": lambda path: path.write_bytes(b""),
    "deleted": lambda path: path.unlink(),
    "grown": lambda path: path.write_bytes(path.read_bytes() + b"\0" * 64),
    "zeroed": lambda path: path.write_bytes(bytes(len(path.read_bytes()))),
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("kind", ["compressed_kv", "indexer_state", "swa_window", "uncompressed_tail"])
def test_a_damaged_object_is_found_quarantined_and_never_served(on_disk, kind, how):
    rig, tokens = on_disk
    DAMAGE[how](next(p for p in rig.files() if f"-{kind}-" in p.name))
    found = rig.look(tokens)
    assert found.wrong_bytes == 0
    assert found.usable < len(tokens)
    rig.assert_clean()
    assert rig.engine.stats()["quarantined"][-1]["kind"] == kind
    assert rig.states == {"QUARANTINED": 1}
    assert rig.commit(tokens).outcome == "admitted"
    assert rig.look(tokens).usable == len(tokens)
    rig.assert_clean()


@pytest.mark.parametrize("restart", [False, True])
def test_two_files_swapped_under_the_engine_are_not_taken_for_each_other(make_rig, tmp_path, restart):
    rig = make_rig(data_dir=tmp_path, **DISK)
    prompts = [prompt(4 * rig.page, seed) for seed in (1, 2)]
    for tokens in prompts:
        rig.command("offload", prefix_ids=[rig.commit(tokens).prefix_id], tier="disk")
    if restart:
        rig.engine.close()
    for kind in ("compressed_kv", "indexer_state", "swa_window", "uncompressed_tail"):
        one, two = (p for p in rig.files() if f"-{kind}-" in p.name)
        first, second = one.read_bytes(), two.read_bytes()
        one.write_bytes(second)
        two.write_bytes(first)
    if restart:
        rig.clock.advance(1)
        rig = make_rig(data_dir=tmp_path, clock=rig.clock, **DISK)
    for tokens in prompts:
        assert rig.look(tokens).wrong_bytes == 0
    rig.assert_clean()


def test_damage_in_a_file_that_two_halves_of_a_split_share_harms_neither_answer(on_disk):
    rig, tokens = on_disk
    other = fork(tokens, 2 * rig.page + 5, 5 * rig.page, 1)
    rig.engine.commit(other, rig.model.prefill(other, 0, [5 * rig.page]))  # splits what is on disk after two pages
    assert len(rig.ids) == 3
    rig.command("offload", prefix_ids=rig.ids, tier="disk")
    flip(next(p for p in rig.files() if "-compressed_kv-" in p.name))
    for wanted in (tokens, other, tokens[: 2 * rig.page]):
        assert rig.look(wanted).wrong_bytes == 0
        rig.assert_clean()
    rig.command("evict", prefix_ids=rig.ids)
    rig.assert_clean()
    assert rig.files() == []


def test_scrub_finds_damage_before_a_request_does(on_disk):
    rig, tokens = on_disk
    flip(next(p for p in rig.files() if "-compressed_kv-" in p.name))
    assert rig.command("scrub").outcome["damaged"] == 1
    assert rig.states == {"QUARANTINED": 1}
    assert rig.look(tokens).reason in ("pages_missing", "quarantined")
    rig.assert_clean()


# -- the device fails ------------------------------------------------------------------------------------------------


def fail_writes(patch, code, *, after_bytes=0):
    write, seen = os.write, [0]

    def failing(fd, data):
        seen[0] += len(data)
        if seen[0] > after_bytes:
            raise OSError(code, os.strerror(code))
        return write(fd, data)

    patch.setattr("engine.memory.disk.os.write", failing)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("after_bytes", [0, 700])
def test_a_failed_write_leaves_nothing_behind_and_the_prefix_stays_on_the_gpu(
    make_rig, tmp_path, monkeypatch, code, after_bytes
):
    rig = make_rig(data_dir=tmp_path, **DISK)
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    with monkeypatch.context() as patch:
        fail_writes(patch, code, after_bytes=after_bytes)
        assert rig.command("offload", prefix_ids=[prefix_id], tier="disk").outcome["refused"]
    assert list((tmp_path / "objects").iterdir()) == []
    rig.assert_clean()
    found = rig.look(tokens, deadline_s=0)
    assert (found.usable, found.wrong_bytes) == (len(tokens), 0)


def test_a_rename_that_fails_leaves_nothing_behind(make_rig, tmp_path, monkeypatch):
    rig = make_rig(data_dir=tmp_path, **DISK)
    prefix_id = rig.commit(prompt(4 * rig.page)).prefix_id

    def failing(*_):
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr("engine.memory.disk.os.rename", failing)
        rig.command("offload", prefix_ids=[prefix_id], tier="disk")
    assert list((tmp_path / "objects").iterdir()) == []
    rig.assert_clean()


def test_bytes_whose_names_may_not_last_do_not_replace_those_on_the_gpu(make_rig, tmp_path, monkeypatch):
    rig = make_rig(data_dir=tmp_path, **DISK)
    tokens = prompt(4 * rig.page)
    prefix_id = rig.commit(tokens).prefix_id
    real = os.fsync

    def failing(fd):
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "no space")
        return real(fd)

    with monkeypatch.context() as patch:
        patch.setattr("engine.memory.disk.os.fsync", failing)
        assert rig.command("offload", prefix_ids=[prefix_id], tier="disk").outcome["refused"]
    rig.assert_clean()
    assert rig.look(tokens, deadline_s=0).usable == len(tokens)


def test_reads_that_fail_open_the_breaker_and_requests_go_on_without_the_disk(on_disk, monkeypatch):
    rig, tokens = on_disk
    real = os.fstat
    with monkeypatch.context() as patch:

        def failing(fd):
            if "objects" in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(errno.EIO, "input/output error")
            return real(fd)

        patch.setattr("engine.memory.disk.os.fstat", failing)
        reasons = [rig.look(tokens).reason for _ in range(4)]
    assert "tier_unavailable" in reasons
    assert rig.ledger.tiers.io["disk"].breaker.state == "open"
    assert rig.look(tokens).usable == 0  # still open: nothing is tried
    rig.assert_clean()
    rig.clock.advance(6)  # half open: one trial goes through and closes it
    found = rig.look(tokens)
    assert (found.usable, found.wrong_bytes) == (len(tokens), 0)
    assert rig.ledger.tiers.io["disk"].breaker.state == "closed"
    rig.assert_clean()


# -- restart ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["small-deepseek-v4", "small-gemma-3"])
def test_a_restart_serves_what_was_held_split_and_all(make_rig, tmp_path, name):
    rig = make_rig(name, data_dir=tmp_path, **DISK)
    trunk = prompt(6 * rig.page)
    prompts = [trunk, fork(trunk, 200, 7 * rig.page, 1), fork(trunk, 3 * rig.page, 333, 2), prompt(100, 3)]
    for tokens in prompts:
        rig.serve(tokens)
    rig.engine.close()
    rig.clock.advance(1)
    again = make_rig(name, data_dir=tmp_path, clock=rig.clock, **DISK)
    assert again.engine.adoption.damaged == 0
    again.assert_clean()
    for tokens in prompts:
        found = again.look(tokens)
        assert (found.usable, found.wrong_bytes) == (len(tokens), 0)
        assert found.tier == "disk"
    again.assert_clean()


def test_a_start_with_a_smaller_quota_keeps_what_fits(make_rig, tmp_path):
    rig = make_rig(data_dir=tmp_path, **DISK)
    prompts = [prompt(300, seed) for seed in range(6)]
    for tokens in prompts:
        rig.serve(tokens)
    rig.engine.close()
    rig.clock.advance(1)
    again = make_rig(data_dir=tmp_path, clock=rig.clock, gpu_bytes=1 << 20, disk_bytes=60_000)
    assert 0 < again.engine.stats()["tiers"]["disk"]["live_bytes"] <= 60_000
    again.assert_clean()
    for tokens in prompts:
        assert again.look(tokens).wrong_bytes == 0


def test_files_of_other_weights_are_not_adopted(make_rig, tmp_path):
    rig = make_rig(data_dir=tmp_path, **DISK)
    tokens = prompt(4 * rig.page)
    rig.commit(tokens)
    rig.engine.close()
    rig.clock.advance(1)
    other = make_rig(
        spec=replace(preset("small-deepseek-v4"), revision="other"), data_dir=tmp_path, clock=rig.clock, **DISK
    )
    assert other.engine.adoption.orphans
    assert other.look(tokens).usable == 0
    other.assert_clean()


def test_strangers_in_the_folder_do_not_stop_a_start(make_rig, tmp_path):
    objects = tmp_path / "objects"
    objects.mkdir(parents=True)
    (objects / "notes.txt").write_text("hello")
    (objects / "half.tmp").write_bytes(b"x" * 100)
    (objects / "folder").mkdir()
    rig = make_rig(data_dir=tmp_path, **DISK)
    tokens = prompt(3 * rig.page)
    rig.command("offload", prefix_ids=[rig.commit(tokens).prefix_id], tier="disk")
    assert rig.look(tokens).wrong_bytes == 0
    assert not (objects / "half.tmp").exists()


def test_a_folder_serves_one_engine_at_a_time(make_rig, tmp_path):
    rig = make_rig(data_dir=tmp_path, **DISK)
    before = threading.active_count()
    with pytest.raises(FolderLocked):
        Rig(data_dir=tmp_path, **DISK)
    assert threading.active_count() == before
    rig.engine.close()
    make_rig(data_dir=tmp_path, **DISK)


def test_a_start_that_fails_leaves_no_thread_and_no_lock(make_rig, tmp_path, monkeypatch):
    before = threading.active_count()

    def unreadable(_):
        raise OSError(errno.EIO, "no luck")

    with monkeypatch.context() as patch:
        patch.setattr("engine.memory.disk.DiskTier.scan", unreadable)
        with pytest.raises(OSError, match="no luck"):
            Rig(data_dir=tmp_path, **DISK)
    assert threading.active_count() == before
    make_rig(data_dir=tmp_path, **DISK)  # the folder is free again


def test_a_folder_is_private(make_rig, tmp_path):
    rig = make_rig(data_dir=tmp_path / "deep" / "folder", **DISK)
    rig.command("offload", prefix_ids=[rig.commit(prompt(128)).prefix_id], tier="disk")
    folder = tmp_path / "deep" / "folder"
    assert {p.stat().st_mode & 0o077 for p in (folder, folder / "objects", folder / "quarantine")} == {0}


@pytest.mark.parametrize(
    "setting",
    [
        {"gpu_bytes": 0}, {"gpu_bytes": 100}, {"slab_bytes": 64}, {"disk_bytes": 1}, {"lease_s": 0},
        {"lease_s": float("nan")},
        {"mode": "fast"}, {"codec": "zip"}, {"checkpoint_budget_ratio": 1.0}, {"materialise": False, "host_bytes": 1},
        {"cap_prefixes": 0}, {"cap_gpu_bytes": True}, {"queue_bound": 0}, {"host_bytes": -1},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_setting_stops_the_start_and_leaves_no_thread(setting):
    before = threading.active_count()
    with pytest.raises(ConfigError):
        CacheEngine(preset("small-deepseek-v4"), EngineConfig(**{"slab_bytes": 32 << 10, **setting}))
    assert threading.active_count() == before


def forged(path, *, later_ns=0, tokens=slice(None), shift=0, **changes):
    """A whole file with a right name, made from another one: what its header says of itself is not what is there."""
    stored = diskfile.decode(np.fromfile(path, dtype=np.uint8), path.name)
    header = replace(stored.header, written_ns=stored.header.written_ns + later_ns, **changes)
    made = path.with_name(f"{header.prefix_id}-{header.kind}-{header.boundary}-{header.written_ns:x}-99.safetensors")
    made.write_bytes(b"".join(diskfile.encode(header, stored.pages, stored.sums, stored.tokens[tokens] + shift)))
    return made


@pytest.mark.parametrize(
    ("kind", "forgery"),
    [
        ("compressed_kv", {"later_ns": -1}),
        ("compressed_kv", {"prefix_id": "0" * 32, "shift": 1}),
        ("compressed_kv", {"prefix_id": "0" * 32, "tokens": slice(-1)}),
        ("compressed_kv", {"prefix_id": "0" * 32, "later_ns": 1}),
        ("swa_window", {"later_ns": -1}),
        ("swa_window", {"prefix_id": "0" * 32}),
        ("swa_window", {"prefix_id": "0" * 32, "tokens": slice(-1)}),
        ("swa_window", {"prefix_id": "0" * 32, "boundary": 1, "tokens": slice(1)}),
    ],
    ids=[
        "an older copy", "tokens of another id", "too few tokens", "pages that another file holds",
        "an older block", "a block of no prefix", "a block of too few tokens", "a block before the first page",
    ],
)  # fmt: skip
def test_a_whole_file_that_fits_nothing_is_deleted_at_start_and_the_others_serve(make_rig, tmp_path, kind, forgery):
    config = {"data_dir": tmp_path, "gpu_bytes": 1 << 20, "disk_bytes": 4 << 20}
    rig = make_rig("small-gpt-oss", **config)
    tokens = prompt(3 * rig.page)
    rig.commit(tokens)
    rig.engine.close()
    (good,) = [path for path in rig.files() if f"-{kind}-" in path.name]
    bad = forged(good, **forgery)
    rig.clock.advance(1)
    again = make_rig("small-gpt-oss", clock=rig.clock, **config)
    found = again.engine.adoption
    assert (found.prefixes, found.checkpoints, found.orphans, found.damaged) == (1, 1, 1, 0)
    served = again.look(tokens)
    assert (served.usable, served.wrong_bytes) == (len(tokens), 0)
    again.assert_clean()
    assert not bad.exists()
