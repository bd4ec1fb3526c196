"""No prompt text and no token id leaves an engine: known ones are looked for in every byte that anything says."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from databases import free_port
from live_support import Deck, live_engine
from otlp_support import grpc_receiver, http_receiver
from telemetry_support import SPEC, loud_config, run

from controlplane.auth import Role
from controlplane.host.backends import Backend
from controlplane.host.export import build_export
from controlplane.settings import VoiceSettings
from engine import CacheEngine
from engine.errors import EngineError
from engine.integrations.synthetic import SyntheticModel
from engine.telemetry.identity import identity_of

TEXT = "Zqxjk Vwkqz Jxqvw Qzkxj Wvqjx! "  # words that nothing else says, not even in part
TOKENS = np.frombuffer((TEXT * 83)[: 4 * 640].encode(), dtype="<i4").copy()  # ids whose bytes spell the text
WORDS = ("zqxjk", "vwkqz", "jxqvw", "qzkxj")


def needles() -> Iterator[bytes]:
    """The prompt in every spelling that some layer could give it."""
    for token in {int(t) for t in TOKENS[:24]}:
        yield str(token).encode()
        yield f"{token:x}".encode()
        yield struct.pack(">i", token)
        yield struct.pack("<i", token)
        yield varint(token)
    raw = TOKENS.tobytes()
    for start in range(3):  # base64 has three alignments
        yield base64.b64encode(raw[start : start + 48])[:-4]
        yield base64.urlsafe_b64encode(raw[start : start + 48])[:-4]
    yield raw[:16].hex().encode()
    yield from (word.encode() for word in WORDS)
    yield from (word.encode("utf-16-le") for word in WORDS)


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def leaks(said: bytes) -> list[bytes]:
    """Which needles are in it; upper and lower case are one."""
    folded = said.lower()
    return [needle for needle in needles() if needle in said or needle.lower() in folded]


def test_the_search_finds_each_spelling() -> None:
    raw = TOKENS.tobytes()
    spellings = (
        json.dumps(TOKENS.tolist()).encode(), raw, raw.hex().encode(), base64.b64encode(b"x" + raw), TEXT.encode(),
        TOKENS.astype(">i4").tobytes(), TOKENS.astype("<i8").tobytes(), b"".join(varint(int(t)) for t in TOKENS),
        TEXT.upper().encode(), TEXT.encode("utf-16-le"),
    )  # fmt: skip
    for said in spellings:
        assert leaks(b"nothing here " + said + b" nor here"), said[:40]
    assert not leaks(b"nothing here")


def use(engine: CacheEngine) -> None:
    """The prompt through everything: hits, commands, every tier, a lossy codec, and errors that could quote it."""
    model = SyntheticModel(SPEC)
    for length in (320, 640):
        with engine.acquire(TOKENS[:length], deadline_s=5.0) as lease:
            if lease.usable_tokens:
                lease.load()
            engine.commit(TOKENS[:length], model.prefill(TOKENS[:length], 0, [length]), lease=lease)
    ids = [row["prefix.id"] for row in engine.snapshot()]
    for kind, arguments in (
        ("pin", {"ttl_s": 60}), ("unpin", {}), ("compress", {"codec": "int8"}), ("offload", {"tier": "disk"}),
        ("warm", {}), ("scrub", {"max_bytes": 1 << 30}),
    ):  # fmt: skip
        run(engine, kind, **({} if kind == "scrub" else {"prefix_ids": ids}), **arguments)
    engine.acquire(TOKENS, deadline_s=5.0).release()
    engine.acquire(TOKENS, refuse="load_failed").release()
    for wrong in (
        lambda: engine.acquire(TOKENS.astype(float)),
        lambda: engine.acquire(TOKENS.reshape(2, -1)),
        lambda: engine.commit(TOKENS, model.prefill(TOKENS[:320], 0, [320])),
        lambda: engine.commit(TOKENS, "a state"),  # type: ignore[arg-type]
        lambda: engine.acquire([*TOKENS.tolist(), 1 << 40]),
    ):
        with pytest.raises((EngineError, TypeError, ValueError, OverflowError)) as error:
            wrong()
        logging.getLogger("test").warning("refused: %s", error.value)


def test_spans_metrics_figures_and_logs_say_nothing_of_the_prompt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with http_receiver() as history, grpc_receiver() as backend:
        voice = VoiceSettings(metrics_port=free_port())
        export = build_export(
            history.url, "secret", identity_of("loud", "boot", SPEC), voice=voice,
            backends=[Backend(protocol="grpc", endpoint=backend.url)],
        )  # fmt: skip
        with CacheEngine(
            SPEC, loud_config(tmp_path), span_processors=export.span_processors, resource=export.resource,
            meter_provider=export.meter_provider,
        ) as engine:  # fmt: skip
            use(engine)
            pulled = httpx.get(f"http://127.0.0.1:{voice.metrics_port}/metrics", trust_env=False).content
            figures = [engine.stats(), engine.snapshot(), engine.observed(), engine.curve(), engine.check()]
        export.shutdown()
    assert len(history.spans) > 20
    assert b"kvcache_usable_tokens_total" in pulled
    output = capfd.readouterr()
    for said in (
        bytes(history.raw), bytes(backend.raw), pulled, json.dumps(figures, default=str).encode(),
        caplog.text.encode(), (output.out + output.err).encode(),
    ):  # fmt: skip
        assert not leaks(said)


def test_the_control_plane_holds_and_answers_nothing_of_the_prompt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    deck = Deck(tmp_path)
    deck.start()
    try:
        with live_engine(deck, tmp_path / "engine", dashboard_url="http://127.0.0.1:8411") as live:
            use(live.engine)
            snapshot = live.engine.snapshot()
        bodies = list(everything_it_answers(deck, snapshot))
    finally:
        deck.stop()
        deck.store.dispose()
    assert len(bodies) > 15
    assert any(snapshot[0]["prefix.id"].encode() in body for body in bodies)
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("*.sqlite3*"))
    assert snapshot[0]["prefix.id"].encode() in stored
    kept = b"".join(path.read_bytes() for path in (tmp_path / "engine" / "agent").rglob("*") if path.is_file())
    for said in (*bodies, stored, kept, caplog.text.encode()):
        assert not leaks(said)


def everything_it_answers(deck: Deck, snapshot: list[dict[str, Any]]) -> Iterator[bytes]:
    """The body of every GET there is, with the ids that the engine's prefixes give."""
    headers = {"Authorization": f"Bearer {deck.tokens[Role.ADMIN]}"}
    with httpx.Client(base_url=deck.url, headers=headers, trust_env=False, timeout=30) as client:
        paths = client.get("/openapi.json").json()["paths"]
        known = {"engine": ["live"], "engine_id": ["live"], "prefix_id": [row["prefix.id"] for row in snapshot[:3]]}
        queries = {"/v1/series": "?name=kvcache.queries", "/v1/prefixes": "?limit=1000"}
        for path, calls in paths.items():
            names = re.findall(r"{(\w+)}", path)
            if "get" not in calls or "poll" in path or not set(names) <= known.keys():
                continue
            for values in itertools.product(*(known[name] for name in names)):
                url = path.format(**dict(zip(names, values, strict=True))) + queries.get(path, "")
                yield client.get(url).content
