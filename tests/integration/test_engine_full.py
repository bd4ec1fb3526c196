"""Every tier full of what must stay: a search for room ends soon and says so."""

from __future__ import annotations

import numpy as np
from engine_support import fork, prompt


def test_a_full_host_whose_prefixes_cannot_be_written_is_given_up_on_after_one_look_at_each(
    make_rig, tmp_path, monkeypatch
):
    rig = make_rig(gpu_bytes=512 << 10, host_bytes=512 << 10, disk_bytes=1 << 20, data_dir=tmp_path)
    disk = type(rig.engine._adopter._room.disk)
    asked: list[object] = []
    monkeypatch.setattr(disk, "write", lambda self, node, **_: asked.append(node) or False)  # a disk that is full
    trunk = prompt(6 * rig.page)
    for seed in range(60):  # chains, so that most prefixes have children and may not be evicted
        tokens = fork(trunk, 64 * (1 + seed % 5), 10 * rig.page, seed)
        before = len(asked)
        rig.serve(tokens)
        rig.serve(np.concatenate([tokens, prompt(4 * rig.page, 1000 + seed)]))
        assert len(asked) - before < 2_000
    rig.assert_clean()
