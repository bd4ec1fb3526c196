"""Two OpenID providers for tests: one whose keys the test holds, to forge with, and a library's whole one."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import urlopen

from joserfc import jwt
from joserfc.jwk import RSAKey


class KeyHolder:
    """A provider that publishes keys and signs whatever it is asked to."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "first"})
        self.asked = 0
        holder = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                holder.asked += 1
                issuer = f"http://{self.headers['Host']}"
                keys = {"keys": [holder.key.as_dict(private=False)]}
                found = keys if self.path == "/keys" else {"issuer": issuer, "jwks_uri": f"{issuer}/keys"}
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            def log_message(self, *_args: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"

    def change_key(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "second"})

    def token(self, *, key: RSAKey | None = None, **claims: Any) -> str:
        now = int(time.time())
        whole = {"iss": self.issuer, "aud": "kvdeck", "sub": "u1", "iat": now, "exp": now + 600, **claims}
        signer = key or self.key
        return jwt.encode({"alg": "RS256", "kid": signer.kid}, whole, signer)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(timeout=10)
        self._server.server_close()


@contextmanager
def whole_provider(port: int, people: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A library's provider with a login page, in a process of its own; its issuer. `people` are claims with `sub`."""
    options = [part for person in people for part in ("--user-claims", json.dumps(person))]
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    issuer = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{issuer}/.well-known/openid-configuration")
        yield issuer
    finally:
        process.terminate()
        process.wait(timeout=20)


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"{url} did not answer")
