"""The command line in this process, from `main`: where an error becomes a sentence and an exit code."""

from __future__ import annotations

import sys

import pytest

from controlplane.cli.main import main


def run_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """(Exit code, what stands on stderr) of `kvdeck WORDS`; what it printed elsewhere is read away."""
    monkeypatch.setattr(sys, "argv", ["kvdeck", *(str(word) for word in words)])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0), capsys.readouterr().err
