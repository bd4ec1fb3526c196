"""Streamlit's own sign-in (`st.login`), set up from our settings, and what it knows of who is here."""

from __future__ import annotations

import atexit
import hashlib
import hmac
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import streamlit as st

from controlplane.oidc import DISCOVERY
from controlplane.settings import CLIENT_SECRET_FILE, Settings, read_secret


def secrets_file(settings: Settings, environ: Mapping[str, str] | None = None) -> Path | None:
    """Write the file Streamlit reads its sign-in from, for this process's life and this user's eyes only.

    None where no provider is set up. Raises SettingsError when the client's secret cannot be read.
    """
    if not settings.oidc_issuer:
        return None
    named = (os.environ if environ is None else environ).get(CLIENT_SECRET_FILE, "")
    client_secret = read_secret(CLIENT_SECRET_FILE, named)
    home = settings.dashboard_url or f"http://127.0.0.1:{settings.dashboard_port}"
    # Made of the client's secret: every replica and every start has the same, so nobody is signed out by a restart.
    cookie_secret = hmac.new(client_secret.encode(), b"kvdeck dashboard cookie", hashlib.sha256).hexdigest()
    values = {
        "redirect_uri": f"{home.rstrip('/')}/oauth2callback",
        "cookie_secret": cookie_secret,
        "client_id": settings.oidc_client_id,
        "client_secret": client_secret,
        "server_metadata_url": settings.oidc_issuer.rstrip("/") + DISCOVERY,
        "expose_tokens": "id",
    }
    # JSON's strings are TOML's, too.
    lines = ["[auth]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    handle, path = tempfile.mkstemp(prefix="kvdeck-", suffix=".toml")  # mode 0600
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write("\n".join([*lines, ""]))
    atexit.register(Path(path).unlink, missing_ok=True)
    return Path(path)


def provider_name(settings: Settings) -> str | None:
    """The provider as a button names it: its host. None where none is set up."""
    return urlsplit(settings.oidc_issuer).hostname if settings.oidc_issuer else None


def id_token(settings: Settings) -> str | None:
    """The ID token of whoever signed in with the provider in this browser; None for nobody."""
    if not settings.oidc_issuer or not st.user.is_logged_in:
        return None
    token = st.user.tokens.to_dict().get("id")
    return str(token) if token else None
