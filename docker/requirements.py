"""Writes docker/requirements/*.txt: what each image installs, pinned. `python docker/requirements.py`; a test compares.

The package needs all of its dependencies, but not every process does: the control plane and the dashboard load no
torch, and an engine host draws nothing. So an image installs kvdeck without its dependencies and these lists instead,
which are followed from pyproject.toml through the metadata of what is installed here, at the versions of
constraints.txt.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Set
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).parent / "requirements"
HEAD = "# Written by docker/requirements.py from pyproject.toml and constraints.txt. Change those, then run it again.\n"
DRAWING = frozenset({"streamlit", "plotly", "pandas"})
TENSORS = frozenset({"torch", "safetensors"})
LEFT_OUT = {"controlplane": TENSORS | DRAWING, "dashboard": TENSORS, "engine": DRAWING | {"torch"}}
"""By image: what its processes never load. Torch is in no list: which build of it, is chosen when the image is made."""
EXTRAS = {"controlplane": ("postgres",), "dashboard": ("postgres",), "engine": ()}


def requirements(image: str) -> str:
    """The list of one image."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = list(project["dependencies"])
    for extra in EXTRAS[image]:
        wanted += project["optional-dependencies"][extra]
    names = set(_closure(wanted, LEFT_OUT[image]))
    pins = _pins()
    return HEAD + "".join(f"{name}=={pins[name]}\n" for name in sorted(names))


def _closure(wanted: list[str], left_out: Set[str]) -> Iterator[str]:
    """Names of everything that these lines need on this machine's Python and system, themselves included."""
    seen: set[tuple[str, str]] = set()
    open_lines = [(line, "") for line in wanted]
    while open_lines:
        line, asked_as = open_lines.pop()
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if name in left_out or (requirement.marker and not requirement.marker.evaluate({"extra": asked_as})):
            continue
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                open_lines += [(line, extra) for line in requires(name) or ()]
        yield name


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, _, version in pairs}


def main() -> None:
    """Writes every list."""
    FOLDER.mkdir(exist_ok=True)
    for image in LEFT_OUT:
        (FOLDER / f"{image}.txt").write_text(requirements(image), encoding="utf-8")


if __name__ == "__main__":
    main()
