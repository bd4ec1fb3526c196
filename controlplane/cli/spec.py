"""`kvdeck spec`: what a model's prefix is made of, in layers, objects and bytes."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from engine.model.spec import ModelSpec, Part


def spec(
    name: Annotated[str | None, typer.Argument(help="A preset; without it, all presets are listed.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the model presets, or show one: its layers, object kinds, bytes and fingerprint."""
    from engine.model.presets import preset, preset_names

    if name is None:
        summaries = [summary_of(preset(n)) for n in preset_names()]
        _print_json(summaries) if as_json else _print_presets(summaries)
        return
    description = description_of(preset(name))
    _print_json(description) if as_json else _print_preset(description)


def summary_of(model: ModelSpec) -> dict[str, Any]:
    """One preset in a row: tokens, and bytes a token and a checkpoint."""
    from engine.model.objects import bytes_per_token, checkpoint_bytes

    return {
        "name": model.name,
        "layers": len(model.layers),
        "page_tokens": model.page_tokens,
        "window_tokens": model.window,
        "replay_tokens": model.replay_tokens,
        "span_bytes_per_token": bytes_per_token(model),
        "checkpoint_bytes": checkpoint_bytes(model),
        "fingerprint": model.fingerprint,
    }


def description_of(model: ModelSpec) -> dict[str, Any]:
    """A preset in full: the summary, groups of equal layers, and every object kind with its bytes."""
    from engine.model.objects import SPAN_KINDS, layouts_of

    layouts = layouts_of(model)
    parts = Counter(tuple(_part_text(p) for p in layer.parts) for layer in model.layers)
    kinds = []
    for kind in (*layouts.span_kinds, *layouts.boundary_kinds):
        layout, is_span = layouts.of(kind), kind in SPAN_KINDS
        per = model.page_tokens if is_span else 1
        kinds.append(
            {
                "kind": str(kind),
                "valid": "any position" if is_span else "one position",
                "tensors": len(layout.segments),
                "slot_bytes": layout.slot_bytes,
                "bytes": layout.slot_bytes / per,
                "bytes_of": "token" if is_span else "checkpoint",
            }
        )
    return summary_of(model) | {
        "revision": model.revision,
        "flops_per_token": model.flops_per_token,
        "layer_groups": [{"layers": count, "parts": list(texts)} for texts, count in parts.items()],
        "object_kinds": kinds,
    }


def _part_text(part: Part) -> str:
    fields = ", ".join(f"{f.name} {f.dtype}[{f.width}]" for f in part.fields)
    ratio, window = getattr(part, "ratio", 1), getattr(part, "window", None)
    notes = [f"ratio {ratio}"] if ratio > 1 else []
    notes += [f"window {window}"] if window is not None else []
    notes += [noun for noun in ("buffers", "overlaps") if getattr(part, noun, ())]
    return f"{part.name}: {fields}" + (f" ({', '.join(notes)})" if notes else "")


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))


def _print_presets(summaries: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("preset", no_wrap=True)
    for title in ("layers", "page", "window", "replay", "bytes/token", "bytes/checkpoint"):
        table.add_column(title, justify="right")
    for row in summaries:
        window = str(row["window_tokens"]) if row["window_tokens"] else "-"
        table.add_row(
            row["name"],
            str(row["layers"]),
            str(row["page_tokens"]),
            window,
            f"{row['replay_tokens']:,}",
            f"{row['span_bytes_per_token']:,.0f}",
            f"{row['checkpoint_bytes']:,}",
        )
    Console().print(table)


def _print_preset(row: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console.print(f"[bold]{row['name']}[/bold]  revision {row['revision']}")
    console.print(f"fingerprint {row['fingerprint']}")
    console.print(
        f"page {row['page_tokens']} tokens, widest window {row['window_tokens'] or 'none'}, "
        f"exact replay {row['replay_tokens']:,} tokens\n"
    )
    layers = Table("layers", "part", box=None, pad_edge=False)
    for group in row["layer_groups"]:
        for at, text in enumerate(group["parts"]):
            # Widths are written in brackets, which Rich would read as markup.
            layers.add_row(f"{group['layers']} x" if at == 0 else "", Text(text))
    console.print(layers)
    kinds = Table("object kind", "valid at", box=None, pad_edge=False)
    kinds.add_column("tensors", justify="right")
    kinds.add_column("bytes", justify="right")
    for kind in row["object_kinds"]:
        kinds.add_row(kind["kind"], kind["valid"], str(kind["tensors"]), f"{kind['bytes']:,.1f} a {kind['bytes_of']}")
    console.print()
    console.print(kinds)
    console.print(
        f"\n{row['span_bytes_per_token']:,.1f} bytes a token of history, "
        f"{row['checkpoint_bytes']:,} bytes a checkpoint at most"
    )
