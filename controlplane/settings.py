"""The settings of the control plane, and of the voice of an engine host: frozen values, built once.

The only module that reads the environment.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from controlplane.errors import SettingsError

MIB = 1 << 20
SCHEMES = ("sqlite", "postgresql", "postgresql+psycopg")
PASSWORD_FILE = "KVDECK_DATABASE_PASSWORD_FILE"
"""Names a file with the password of `KVDECK_DATABASE_URL`: what is in the environment is seen by too many."""
CLIENT_SECRET_FILE = "KVDECK_OIDC_CLIENT_SECRET_FILE"
"""For the dashboard: names a file with the secret of the client `KVDECK_OIDC_CLIENT_ID`."""
EVERYBODY = "*"
"""In `oidc_roles`: whoever can sign in."""
ROLES_OF_PEOPLE = ("viewer", "operator", "admin")


HTTP, GRPC = "http/protobuf", "grpc"
PROTOCOLS = (HTTP, GRPC)
SAMPLERS = {
    "always_on": (1.0, False),
    "always_off": (0.0, False),
    "traceidratio": (None, False),
    "parentbased_always_on": (1.0, True),
    "parentbased_always_off": (0.0, True),
    "parentbased_traceidratio": (None, True),
}
"""Ratio of the traces that begin here (None: the argument), and whether a caller's own decision goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceSettings:
    """How an engine host speaks beside the history: to one backend by the standard `OTEL_*` variables, and on a port to
    pull metrics from. Addresses, headers, certificates, compression and timeouts are read by OpenTelemetry itself.
    """

    traces: bool = False
    metrics: bool = False
    traces_protocol: str = HTTP
    metrics_protocol: str = HTTP
    sampler_ratio: float = 1.0
    sampler_follows_caller: bool = True
    service_name: str = ""
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0  # 0: metrics are not served
    dashboard_url: str = ""  # spans then say where the dashboard shows what they are about

    @property
    def has_backend(self) -> bool:
        """Whether anything goes anywhere but to the history."""
        return self.traces or self.metrics

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> VoiceSettings:
        """Raises SettingsError naming the variable, its value and what is allowed."""
        environ = os.environ if environ is None else environ
        off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        ratio, follows = _sampler(environ)
        return cls(
            traces=not off and _is_sent("TRACES", environ),
            metrics=not off and _is_sent("METRICS", environ),
            traces_protocol=_protocol("TRACES", environ),
            metrics_protocol=_protocol("METRICS", environ),
            sampler_ratio=ratio,
            sampler_follows_caller=follows,
            service_name=environ.get("OTEL_SERVICE_NAME", "").strip(),
            metrics_host=_text("KVDECK_METRICS_HOST", environ.get("KVDECK_METRICS_HOST", "127.0.0.1")),
            metrics_port=_port("KVDECK_METRICS_PORT", port) if (port := environ.get("KVDECK_METRICS_PORT", "")) else 0,
            dashboard_url=_web_url("KVDECK_DASHBOARD_URL", environ.get("KVDECK_DASHBOARD_URL", "")),
        )


VOICE_VARIABLES = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "where spans and metrics also go; unset: nowhere but to the control plane",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, ..._METRICS_ENDPOINT": "the same for one of the two, as a whole address",
    "OTEL_EXPORTER_OTLP_PROTOCOL (..._TRACES_..., ..._METRICS_...)": "`http/protobuf` (default) or `grpc`",
    "OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE, _CLIENT_KEY, _CLIENT_CERTIFICATE, _COMPRESSION, _TIMEOUT": (
        "as OpenTelemetry defines them; they are not used for the control plane"
    ),
    "OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER": "`otlp` (default), or `none` for not that one",
    "OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG": (
        f"what the backend gets: {', '.join(SAMPLERS)}; default parentbased_always_on. Transitions, commands and "
        "failures always; the history gets everything"
    ),
    "OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES": "who speaks",
    "OTEL_SDK_DISABLED": "`true`: no backend at all",
    "KVDECK_METRICS_PORT": "serve `/metrics` for Prometheus on this port; unset: the engine opens no port",
    "KVDECK_METRICS_HOST": "on this address; 127.0.0.1",
    "KVDECK_DASHBOARD_URL": "the dashboard's address: spans then carry `kvcache.dashboard.url`",
}
"""For the reference: what an engine host reads."""


def _is_sent(signal: str, environ: Mapping[str, str]) -> bool:
    variable = f"OTEL_{signal}_EXPORTER"
    chosen = environ.get(variable, "").strip().lower() or "otlp"
    if chosen not in ("otlp", "none"):
        raise _refuse(variable, chosen, "otlp or none")
    named = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    for name in named:
        _web_url(name, environ.get(name, "").strip())
    return chosen == "otlp" and any(environ.get(name, "").strip() for name in named)


def _protocol(signal: str, environ: Mapping[str, str]) -> str:
    for variable in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if value := environ.get(variable, "").strip().lower():
            if value not in PROTOCOLS:
                raise _refuse(variable, value, " or ".join(PROTOCOLS))
            return value
    return HTTP


def _sampler(environ: Mapping[str, str]) -> tuple[float, bool]:
    name = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
    if name not in SAMPLERS:
        raise _refuse("OTEL_TRACES_SAMPLER", name, ", ".join(SAMPLERS))
    ratio, follows = SAMPLERS[name]
    if ratio is not None:
        return ratio, follows
    argument = environ.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1.0"
    try:
        ratio = float(argument)
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise _refuse("OTEL_TRACES_SAMPLER_ARG", argument, "a ratio from 0 to 1")
    return ratio, follows


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every field is the variable `KVDECK_<FIELD IN CAPITALS>`; seconds, days and bytes are in the names."""

    database_url: str
    data_dir: Path
    url: str = ""  # for the dashboard: a control plane on another machine; empty: the one on this machine
    host: str = "127.0.0.1"
    api_port: int = 8410
    dashboard_port: int = 8411
    ingest_max_bytes: int = 8 * MIB  # one OTLP body as sent; decompressed it may be 8 times that
    engine_stale_seconds: int = 15  # no word for this long: shown as stale
    engine_unreachable_seconds: int = 60  # and for this long: unreachable
    session_ttl_seconds: int = 12 * 3600  # of the token a one-time link is redeemed for
    oidc_issuer: str = ""  # people sign in there; empty: by token and one-time link alone
    oidc_client_id: str = ""
    oidc_role_claim: str = "groups"  # of the ID token; dots lead inside: realm_access.roles
    oidc_roles: str = ""  # what the claim's words mean: kv-admins=admin,kv-ops=operator,*=viewer
    dashboard_url: str = ""  # the dashboard's address as browsers write it; empty: this machine's
    allowed_hosts: str = ""  # names, with commas, that requests may be sent to beside this machine's own
    trace_url: str = ""  # a tracing backend's page of one trace, with {trace_id} in it; empty: ids are not links
    keep_metric_points_hours: int = 2
    keep_requests_hours: int = 24  # single requests and what each lost
    keep_rollups_days: int = 30
    keep_history_days: int = 14
    keep_curves_days: int = 2  # a curve a minute and engine; what they foretold is kept as the audit is
    keep_audit_days: int = 365

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the ports."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def allowed_host_names(self) -> tuple[str, ...]:
        """The names in `allowed_hosts`, in small letters."""
        return tuple(name.strip().lower() for name in self.allowed_hosts.split(",") if name.strip())

    @property
    def oidc_role_pairs(self) -> tuple[tuple[str, str], ...]:
        """`oidc_roles` as (word of the claim, role)."""
        pairs = (pair.rpartition("=") for pair in self.oidc_roles.split(",") if pair.strip())
        return tuple((word.strip(), role.strip()) for word, _, role in pairs)

    @property
    def api_url(self) -> str:
        """Where a process on this machine reaches the API."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.api_port}"

    @property
    def ingest_max_inflated_bytes(self) -> int:
        """The bound on a gzip body once decompressed: spans compress about six times, bombs a thousand."""
        return 8 * self.ingest_max_bytes

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read `KVDECK_*`. Raises SettingsError naming the variable, its value and what is allowed."""
        environ = os.environ if environ is None else environ
        data_dir = _data_dir(environ)
        values: dict[str, Any] = {
            "data_dir": data_dir,
            "database_url": f"sqlite:///{data_dir / 'kvdeck.sqlite3'}",
        }
        for field in fields(cls):
            variable = f"KVDECK_{field.name.upper()}"
            if variable in environ and field.name != "data_dir":
                values[field.name] = _READERS.get(field.name, _positive)(variable, environ[variable])
        if file := environ.get(PASSWORD_FILE):
            values["database_url"] = _with_password(values["database_url"], file)
        settings = cls(**values)
        _check_together(settings)
        return settings


def _data_dir(environ: Mapping[str, str]) -> Path:
    named = environ.get("KVDECK_DATA_DIR")
    if named is not None:
        return Path(_text("KVDECK_DATA_DIR", named)).expanduser().absolute()
    base = environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "kvdeck"


def _check_together(settings: Settings) -> None:
    if settings.engine_unreachable_seconds <= settings.engine_stale_seconds:
        raise _refuse(
            "KVDECK_ENGINE_UNREACHABLE_SECONDS",
            str(settings.engine_unreachable_seconds),
            f"more than KVDECK_ENGINE_STALE_SECONDS, which is {settings.engine_stale_seconds}",
        )
    if settings.api_port == settings.dashboard_port:
        raise _refuse("KVDECK_DASHBOARD_PORT", str(settings.dashboard_port), "a port other than KVDECK_API_PORT")
    if settings.oidc_issuer and not settings.oidc_client_id:
        raise _refuse("KVDECK_OIDC_CLIENT_ID", "", "the client's id at KVDECK_OIDC_ISSUER, which is set")
    if settings.oidc_issuer and not settings.oidc_roles:
        raise _refuse("KVDECK_OIDC_ROLES", "", "who gets which role, as kv-ops=operator,*=viewer: otherwise nobody")


def _refuse(variable: str, value: str, allowed: str) -> SettingsError:
    return SettingsError("setting_invalid", f"{variable} is {value!r}.", f"Allowed: {allowed}.")


def _text(variable: str, value: str) -> str:
    if not value.strip():
        raise _refuse(variable, value, "a value that is not empty (or leave the variable unset)")
    return value.strip()


def _positive(variable: str, value: str) -> int:
    if not value.strip().isascii() or not value.strip().isdigit() or int(value) < 1:
        raise _refuse(variable, value, "a whole number from 1")
    return int(value)


def _port(variable: str, value: str) -> int:
    if not value.strip().isascii() or not value.strip().isdigit() or not 1 <= int(value) <= 65535:
        raise _refuse(variable, value, "a port, a whole number from 1 to 65535")
    return int(value)


def _database_url(variable: str, value: str) -> str:
    allowed = "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"
    try:
        url = make_url(value.strip())
    except ArgumentError:
        raise _refuse(variable, value, allowed) from None
    if url.drivername not in SCHEMES or (url.drivername == "sqlite" and url.database in (None, "", ":memory:")):
        raise _refuse(variable, url.render_as_string(hide_password=True), allowed)
    return value.strip()


def _with_password(database_url: str, file: str) -> str:
    url = make_url(database_url)
    if url.drivername == "sqlite":
        raise _refuse(PASSWORD_FILE, file, "nothing, as SQLite has no password (or set KVDECK_DATABASE_URL)")
    return url.set(password=read_secret(PASSWORD_FILE, file)).render_as_string(hide_password=False)


def read_secret(variable: str, file: str) -> str:
    """The secret in a file that a variable names. Raises SettingsError naming both and why it cannot be had."""
    try:
        secret = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise _refuse(variable, file, f"a file that this user can read; this one: {why}") from None
    if not secret:
        raise _refuse(variable, file, "a file with a secret in it; this one is empty")
    return secret


def _trace_url(variable: str, value: str) -> str:
    if value and ("{trace_id}" not in value or not value.startswith(("http://", "https://"))):
        raise _refuse(variable, value, "an http(s) address with {trace_id} in it, or nothing")
    return value


def _web_url(variable: str, value: str) -> str:
    if value and not value.startswith(("http://", "https://")):
        raise _refuse(variable, value, "an http(s) address, or nothing")
    return value


def _issuer(variable: str, value: str) -> str:
    parts = urlsplit(value.strip())
    is_safe = parts.scheme == "https" or (
        parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")
    )
    if value and (not is_safe or parts.query or parts.fragment):
        raise _refuse(variable, value, "an https address as the provider writes it (http on this machine alone)")
    return value.strip()


def _oidc_roles(variable: str, value: str) -> str:
    for pair in (pair for pair in value.split(",") if pair.strip()):
        word, sign, role = pair.rpartition("=")
        if not sign or not word.strip() or role.strip() not in ROLES_OF_PEOPLE:
            allowed = f"WORD=ROLE with commas, * for everybody, roles {', '.join(ROLES_OF_PEOPLE)}"
            raise _refuse(variable, pair, allowed)
    return value.strip()


def _host_names(variable: str, value: str) -> str:
    names = [name.strip() for name in value.split(",") if name.strip()]
    if wrong := next((name for name in names if not _HOST_NAME.fullmatch(name)), None):
        raise _refuse(variable, wrong, "names of hosts without scheme and port, as kvdeck.example,10.0.0.5")
    return ",".join(names)


_HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9a-fA-F:]{2,45}")
_READERS: dict[str, Callable[[str, str], Any]] = {
    "database_url": _database_url,
    "host": _text,
    "api_port": _port,
    "dashboard_port": _port,
    "trace_url": _trace_url,
    "oidc_issuer": _issuer,
    "oidc_client_id": _text,
    "oidc_role_claim": _text,
    "oidc_roles": _oidc_roles,
    "dashboard_url": _web_url,
    "allowed_hosts": _host_names,
    "url": _web_url,
}
