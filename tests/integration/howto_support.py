"""The blocks of commands in the pages of docs/howto, and a shell to run them in as they are written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
BLOCK = re.compile(r"^( *)```sh\n(.*?)^ *```", re.S | re.M)
PATIENCE_SECONDS = 120


def blocks(page: str) -> list[str]:
    """What a reader would paste, in the page's order."""
    text = (HOWTO / page).read_text(encoding="utf-8")
    return [re.sub(rf"^{indent}", "", body, flags=re.M) for indent, body in BLOCK.findall(text)]


def environment(**variables: str) -> dict[str, str]:
    """This process's variables with `kvdeck` on the path, without any of kvdeck's own, and those given."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("KVDECK_")}
    here = str(Path(sys.executable).parent)
    return kept | {"PATH": os.pathsep.join((variables.pop("TOOLS", here), here, kept["PATH"]))} | variables


def shell(script: str, folder: Path, **variables: str) -> str:
    """Runs a block in a folder, to its end, stopping at the first command that fails; what it said. `TOOLS`: a folder
    of programs that come first."""
    done = subprocess.run(
        ["bash", "-eu", "-c", script],
        cwd=folder,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout
