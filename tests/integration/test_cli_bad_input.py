"""Every verb, given what it cannot use: an exit code of `exits.py`, a sentence that says what to do, never a traceback.

In this process, against a real control plane; answers that one gives only in trouble come from a small server that
gives nothing else.
"""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from api_seed import ENGINE, Seed
from databases import Databases
from steering_support import prefix_id, running_deck

from controlplane.auth import Role
from controlplane.cli.exits import Exit
from controlplane.cli.main import app, main

PREFIX = prefix_id(1)
WHY = ["--reason", "test"]
GOOD: dict[str, list[str]] = {
    "status": [], "prefixes": [], "top": ["--once"], "explain": [], "doctor": [], "inspect": [PREFIX],
    "evict": [PREFIX, "--yes"], "warm": [PREFIX], "restore": [PREFIX], "pin": [PREFIX], "unpin": [PREFIX],
    "compress": [PREFIX], "offload": [PREFIX], "compact": [], "scrub": [], "drain": ["--yes"], "commands": [],
    "audit": [], "marks": [], "failures": [], "damaged": [], "series": ["requests"],
    "command": ["COMMAND"], "cancel": ["COMMAND", *WHY], "label": [PREFIX, "a=b", *WHY],
    "engine-place": [ENGINE, "--group", "g", *WHY],
    "engine-forget": [ENGINE, *WHY], "cap": ["--prefixes", "9"], "mode": ["normal"], "whatif": ["--engine", ENGINE],
    "desired show": [], "desired history": [], "desired diff": ["1"], "desired rollback": ["1"],
    "policy list": [], "policy show": ["degrade"], "policy kinds": [], "policy add": ["p", "warmup", *WHY],
    "policy set": ["degrade", "--every", "20", *WHY], "policy pause": ["degrade", *WHY],
    "policy resume": ["degrade", *WHY], "policy run": ["degrade", "--dry-run", *WHY], "policy history": [],
    "policy why": ["degrade"], "policy remove": ["p", *WHY], "alert list": [], "alert show": ["ALERT"],
    "alert ack": ["ALERT", *WHY], "alert silence": ["--until", "1h", "--rule", "x", *WHY], "alert silences": [],
    "alert unsilence": ["SILENCE", *WHY], "alert rules": [], "alert rule": ["engine_silent"],
    "alert add-rule": ["r", "silence", "--above", "9", "--resolve-at", "1", *WHY],
    "alert set-rule": ["engine_silent", "--above", "99", *WHY], "alert remove-rule": ["r", *WHY],
    "alert kinds": [], "alert inbound": [], "alert receivers": [],
    "alert add-receiver": ["c", "https://a.example/x", *WHY],
    "alert set-receiver": ["c", "--off", *WHY], "alert remove-receiver": ["c", *WHY], "alert deliveries": [],
}  # fmt: skip
"""What asks a control plane, with arguments that are well formed."""
OFFLINE: dict[str, list[str]] = {
    "migrate": [], "backup": ["copy"], "id": ["tokens.json"], "check": [], "quarantine": [], "replay": ["trace.jsonl"],
    "spec": [], "token create": ["ann"], "token issue": ["ann"], "token list": [], "token revoke": ["x"],
    "token link": [],
}  # fmt: skip
FOREVER = {"up", "serve", "dashboard", "engine", "gameday"}
"""What runs until it is stopped: only what is refused before it starts is tried here."""
SET_UP = {"setup passwords", "setup deck"}
"""Of the containers; tried with them."""
ESCAPED = 70
"""How a run ends here when an exception leaves `main`."""
BAD_VALUES = ["", "8Q", "-1", "0", "9" * 40, "nan", "1e999", "../?#%/\u202e", "x" * 3000]


@dataclass(frozen=True)
class Ended:
    """How one run of the command line ended."""

    code: int
    out: str
    err: str


def _replaced(*_: Any) -> None:
    raise AssertionError("the dashboard would have taken this process over")


@pytest.fixture
def kvdeck(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Runs a command line as the installed program does, but in this process and with the verbs read once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(typer.main, "get_command", lambda _: BUILT)
    monkeypatch.setattr(os, "execv", _replaced)
    for name in ("KVDECK_URL", "KVDECK_TOKEN", "KVDECK_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["kvdeck", *arguments])
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        except Exception:
            code = ESCAPED
            traceback.print_exc()
        out, err = capsys.readouterr()
        return Ended(int(code), out, err)

    return run


def leaves(command: click.Command, before: str = "") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group) or hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from leaves(inner, f"{before} {name}".strip())
    else:
        yield before, command


BUILT = typer.main.get_command(app)
VERBS = dict(leaves(BUILT))


def test_every_verb_is_tried_here() -> None:
    assert set(VERBS) == {*GOOD, *OFFLINE, *FOREVER, *SET_UP}


def problem(arguments: list[str], ended: Ended) -> str | None:
    """What is wrong with how a run ended, or None."""
    if ended.code not in set(Exit):
        return f"{arguments} ended with {ended.code}: {ended.err[-200:]}"
    if "Traceback" in ended.err + ended.out or "way it should not" in ended.err:
        return f"{arguments}: {ended.err[-300:]}"
    if ended.code and len(ended.err.strip()) < 15 and ended.code != Exit.FAILED:
        return f"{arguments} ended with {ended.code} and said {ended.err!r}"
    return None


def own_options() -> Iterator[tuple[str, click.Parameter]]:
    """Each option and argument once, with the first verb that has it: many are shared by all."""
    seen = set()
    for verb in [*GOOD, *OFFLINE]:
        for each in VERBS[verb].params:
            key = (tuple(each.opts), getattr(each, "help", ""), each.param_type_name)
            key += (verb,) if each.param_type_name == "argument" else ()
            flag = getattr(each, "is_flag", False)
            if key not in seen and not flag and each.opts[0] not in ("--url", "--token", "--data-dir", "--help"):
                seen.add(key)
                yield verb, each


@pytest.fixture
def deck(tmp_path, databases: Databases) -> Iterator[tuple[Seed, list[str]]]:
    """A seeded control plane, and the options that lead to it as its operator."""
    with running_deck(tmp_path / "deck", databases.new("sqlite")) as running:
        yield Seed(running), ["--url", running.url, "--token", running.tokens[Role.OPERATOR]]


def filled(seed: Seed, arguments: list[str]) -> list[str]:
    ids = {"COMMAND": seed.told["submit_command"], "ALERT": seed.told["alert"], "SILENCE": seed.told["create_silence"]}
    return [ids.get(argument, argument) for argument in arguments]


def test_no_value_of_any_option_brings_a_traceback(deck, kvdeck, tmp_path) -> None:
    seed, where = deck
    problems, tried = [], 0
    (tmp_path / "tokens.json").write_text("[1, 2, 3]")
    for verb, each in own_options():
        for value in BAD_VALUES:
            good = filled(seed, (GOOD | OFFLINE)[verb])
            waits = [] if verb in OFFLINE else [*where, *(["--no-wait"] if has(verb, "--wait") else [])]
            if each.param_type_name == "argument":
                given = [value, *good[1:]] if not value.startswith("-") else ["--", value]
                arguments = [*verb.split(), *waits, *given] if given[0] == "--" else [*verb.split(), *given, *waits]
            else:
                arguments = [*verb.split(), *good, *waits, f"{each.opts[0]}={value}"]
            problems.append(problem(arguments, kvdeck(*arguments)))
            tried += 1
    assert tried > 500
    assert "\n".join(one for one in problems if one) == ""


def has(verb: str, option: str) -> bool:
    return any(option in each.opts for each in VERBS[verb].params)


def made_up(verb: str) -> list[str]:
    """The verb's good arguments, with ids of nothing."""
    return ["1" if argument.isupper() else argument for argument in GOOD[verb]]


WRONG_URLS = {
    "127.0.0.1:8410": Exit.USAGE,
    "localhost": Exit.USAGE,
    "ftp://127.0.0.1": Exit.USAGE,
    "http://": Exit.USAGE,
    "http://[::1": Exit.USAGE,
    "http://127.0.0.1:99999999": Exit.USAGE,
    "http://\u2603.invalid:1": Exit.USAGE,
    "http://nowhere.invalid:1": Exit.UNREACHABLE,
    "http://127.0.0.1:1": Exit.UNREACHABLE,
}


@pytest.mark.parametrize("verb", GOOD)
def test_an_address_that_is_none_or_where_nobody_answers(verb: str, kvdeck) -> None:
    arguments = made_up(verb)
    for url, code in WRONG_URLS.items():
        ended = kvdeck(*verb.split(), *arguments, "--url", url)
        assert ended.code == code, f"{url}: {ended}"
        assert "KVDECK_URL" in ended.err, ended.err


def test_a_token_that_no_header_can_carry_is_refused_and_not_repeated(kvdeck) -> None:
    for token in ("kvd_\u2603", "kvd_a\nb"):
        ended = kvdeck("status", "--url", "http://127.0.0.1:1", "--token", token)
        assert ended.code == Exit.FORBIDDEN
        assert token not in ended.err


ANSWERS = {
    400: Exit.USAGE, 401: Exit.FORBIDDEN, 403: Exit.FORBIDDEN, 404: Exit.NOT_FOUND, 409: Exit.FAILED, 413: Exit.FAILED,
    421: Exit.FAILED, 429: Exit.UNREACHABLE, 500: Exit.FAILED, 503: Exit.UNREACHABLE,
}  # fmt: skip
GARBAGE = {b"<html>hello</html>": Exit.UNREACHABLE, b"": Exit.UNREACHABLE}


@pytest.fixture(scope="module")
def troubled() -> Iterator[Any]:
    """A server that answers every request the same, whatever that is set to."""

    class Handler(http.server.BaseHTTPRequestHandler):
        status, body = 200, b""

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(self.status)
            self.send_header("Content-Length", str(len(self.body)))
            self.end_headers()
            self.wfile.write(self.body)

        do_GET = do_POST = answer

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    Handler.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    yield Handler
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("verb", GOOD)
def test_every_answer_in_trouble_is_a_sentence_and_a_code(verb: str, kvdeck, troubled) -> None:
    said = json.dumps({"error": {"code": "x", "message": "It is so [bold]now[/].", "hint": "Do that."}}).encode()
    for status, code in ANSWERS.items():
        # What reads a body is one for all verbs: the odd ones are tried with one.
        for body in (said, *((b"not ours", b'{"error": "x"}', b"[]") if verb == "status" else ())):
            troubled.status, troubled.body = status, body
            ended = kvdeck(*verb.split(), *made_up(verb), "--url", troubled.url)
            assert ended.code == code, f"{status} {body!r}: {ended}"
            assert "Traceback" not in ended.err
            if body.startswith(b'{"error": {'):
                assert "It is so [bold]now[/]." in ended.err
                assert "Do that." in ended.err
    for body, code in GARBAGE.items():
        troubled.status, troubled.body = 200, body
        ended = kvdeck(*verb.split(), *made_up(verb), "--url", troubled.url)
        assert ended.code == code, f"{body!r}: {ended}"
        assert "no kvdeck control plane" in ended.err


FILES = ["missing", "folder", "empty", "binary", "cut.jsonl", "numbers.json", "deep.json", "wrong.jsonl"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Files that are not what a verb wants."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "cut.jsonl").write_text('{"timestamp": 1, "input_length": 5, "output_len')
    (tmp_path / "numbers.json").write_text('["a", -1, 1.5, null]')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "wrong.jsonl").write_text(
        '{"timestamp": "x", "input_length": -5, "output_length": {}, "hash_ids": 7}\n'
    )
    return tmp_path


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "verb",
    [["replay"], ["whatif"], ["id"], ["spec"], ["replay", "--spec"], ["whatif", "trace", "--spec"],
     ["engine", "--spec"], ["engine", "--token-file"], ["up", "--spec"]],
    ids=" ".join,
)  # fmt: skip
def test_a_file_that_is_no_such_file_is_named_with_what_is_wrong(verb: list[str], name: str, kvdeck, files) -> None:
    ended = kvdeck(*verb, str(files / name))
    assert ended.code not in (0, None)
    assert problem([*verb, name], ended) is None


@pytest.mark.parametrize("where", ["a-file", "a-file/below"])
@pytest.mark.parametrize(
    "verb", ["check", "quarantine", "token list", "migrate", "serve", "up", "dashboard", "backup x"]
)
def test_a_data_folder_that_cannot_be_one(verb: str, where: str, kvdeck, tmp_path) -> None:
    (tmp_path / "a-file").write_text("x")
    ended = kvdeck(*verb.split(), "--data-dir", str(tmp_path / where))
    assert ended.code not in (0, None)
    assert problem([verb, where], ended) is None


def test_a_database_that_is_none(kvdeck, tmp_path, monkeypatch) -> None:
    (tmp_path / "kvdeck.sqlite3").write_bytes(b"this is no database" * 100)
    for verb in ("migrate", "serve", "token list", "token create x", "backup copy"):
        ended = kvdeck(*verb.split(), "--data-dir", str(tmp_path))
        assert ended.code not in (0, None), verb
        assert problem([verb], ended) is None
    monkeypatch.setenv("KVDECK_DATABASE_URL", "oracle://x")
    ended = kvdeck("migrate")
    assert (ended.code, "KVDECK_DATABASE_URL" in ended.err) == (Exit.USAGE, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--host", "0.0.0.0"], "kvdeck token create YOUR-NAME --role admin"),
        (["serve", "--api-port", "0"], "api-port"),
        (["serve", "--api-port", "8411"], "KVDECK_DASHBOARD_PORT"),
        (["serve", "--host", ""], "KVDECK_HOST"),
        (["engine", "--gpu-mib", "-1"], "gpu"),
        (["engine", "--codec", "zip"], "codec"),
        (["gameday", "no-such-day"], "no-such-day"),
        (["no-such-verb"], "No such command"),
        (["status", "--no-such-option"], "No such option"),
        (["mode", "sideways", "--url", "http://127.0.0.1:1"], "sideways"),
    ],
)
def test_what_would_run_for_ever_is_refused_before_it_does(arguments, said, kvdeck, tmp_path) -> None:
    if arguments[0] == "serve":
        assert kvdeck("migrate", "--data-dir", str(tmp_path)).code == 0
        arguments = [*arguments, "--data-dir", str(tmp_path)]
    ended = kvdeck(*arguments)
    assert ended.code in (Exit.FAILED, Exit.USAGE, Exit.NOT_FOUND, Exit.UNREACHABLE)
    assert said in ended.err
    assert problem(arguments, ended) is None
