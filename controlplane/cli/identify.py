"""`kvdeck id`: the id of a prefix, computed from its tokens; no control plane and no engine needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from controlplane.cli.context import AsJson, show_json, show_table
from controlplane.cli.exits import CliError, Exit


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("id")(identify)


def identify(
    tokens: Annotated[str, typer.Argument(help="A file with a JSON list of token ids; - reads standard input.")],
    spec: Annotated[str, typer.Option(help="The model preset; `kvdeck spec` lists them.")] = "small-deepseek-v4",
    namespace: Annotated[str, typer.Option(help="The namespace the tokens belong to.")] = "default",
    every_page: Annotated[bool, typer.Option("--every-page", help="Also of every page before the end.")] = False,
    as_json: AsJson = False,
) -> None:
    """The id of the prefix that these tokens are, for one model and namespace."""
    from engine.index.node import prefix_id_of, seed
    from engine.model.presets import preset
    from engine.tokens import token_bytes

    model = preset(spec)
    data = token_bytes(_read(tokens))
    hasher = seed(namespace, model.fingerprint)
    token_size = 4  # int32, as the index compares them
    page_bytes = model.page_tokens * token_size
    ends = list(range(page_bytes, len(data), page_bytes)) if every_page else []
    rows: list[dict[str, Any]] = []
    start = 0
    for end in [*ends, len(data)]:
        hasher.update(data[start:end])
        rows.append({"tokens": end // token_size, "prefix_id": prefix_id_of(hasher.copy())})
        start = end
    if as_json:
        show_json(rows)
    elif every_page:
        show_table(f"Prefix ids on {spec}", ("tokens", "prefix"), ((row["tokens"], row["prefix_id"]) for row in rows))
    else:
        typer.echo(rows[-1]["prefix_id"])


def _read(source: str) -> list[int]:
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
    except OSError as error:
        raise CliError(
            f"{source} cannot be read ({error.strerror}).", "Name a file with a JSON list of token ids.", Exit.USAGE
        ) from None
    except UnicodeDecodeError:
        text = ""
    try:
        tokens = json.loads(text)
    except (ValueError, RecursionError):
        tokens = None
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, int) for token in tokens):
        raise CliError(f"{source} holds no JSON list of token ids.", "It looks like [1, 2, 3].", Exit.USAGE)
    return tokens
