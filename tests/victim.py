"""The victim of damage: a model's state of three prompts that share two pages, in memory or on disk alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_support import some_tokens
from ward import PAGE, Ward

END = 3 * PAGE + 9
"""Where the victim's state ends: inside a page, an entry of every ratio and a group of four."""
TOKENS = some_tokens(END + 1)
EARLIER = TOKENS[: 2 * PAGE + 1]
"""The same prefix at an earlier position, where its siblings branch."""
SIBLING = np.concatenate([TOKENS[: 2 * PAGE], some_tokens(PAGE, seed=8), TOKENS[3 * PAGE :]])
"""As long as the victim, with other tokens in its third page and the same tail."""
DISK = {"disk_bytes": 64 << 20, "replay": False}


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


def on_disk(make_ward: Callable[..., Ward], folder: Path, name: str = "deepseek_v4", **config: Any) -> Ward:
    """The victim with everything on disk and nothing above it."""
    ward = victim(make_ward, name, data_dir=folder, **{**DISK, **config})
    ward.to_disk()
    return ward


def restarted(make_ward: Callable[..., Ward], ward: Ward, **config: Any) -> Ward:
    ward.engine.close()
    return make_ward(model=ward.model, **{**DISK, "data_dir": ward.engine.config.data_dir, **config})
