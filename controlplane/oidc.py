"""Who an identity provider says somebody is: an ID token checked (OpenID Connect Core 1.0, 3.1.3.7), a role by a claim.

The control plane checks the token itself: whoever brings one, a dashboard too, can claim no name and no role.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import httpx
from joserfc import jwt
from joserfc.errors import ExpiredTokenError, JoseError
from joserfc.jwk import KeySet

from controlplane.auth import Principal, Role
from controlplane.clock import Clock, utc_now
from controlplane.errors import Forbidden, NotFound, Unauthorised, Unavailable
from controlplane.settings import EVERYBODY, Settings

# Signatures of the provider alone: with a shared secret (HS256), whoever knows the client's could write tokens.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
DISCOVERY = "/.well-known/openid-configuration"
LEEWAY_SECONDS = 60  # how far the clocks of provider and control plane may be apart
KEYS_HOLD_SECONDS = 3600.0
KEYS_LOOKED_AGAIN_SECONDS = 30.0  # a stranger's tokens must not make us ask the provider each time
ANSWER_SECONDS = 5.0
LONGEST_NAME = 128


class Provider:
    """The configured provider, with its keys kept for a while. Safe to call from several threads."""

    def __init__(self, settings: Settings, *, transport: httpx.BaseTransport | None = None, clock: Clock = utc_now):
        self._settings, self._transport, self._clock = settings, transport, clock
        self._lock = threading.Lock()
        self._keys: KeySet | None = None
        self._keys_at = 0.0

    def principal(self, id_token: str) -> Principal:
        """Whoever the token is about. Raises NotFound without a provider, Unauthorised for a token that does not hold,
        Forbidden for somebody without a role, and Unavailable while the provider's keys cannot be had."""
        if not self._settings.oidc_issuer:
            raise NotFound(
                "oidc_off", "No identity provider is set up here.", "Set KVDECK_OIDC_ISSUER and KVDECK_OIDC_CLIENT_ID."
            )
        claims = self._claims(id_token)
        return Principal(name_of(claims), self._role(claims))

    def _claims(self, id_token: str) -> Mapping[str, Any]:
        try:
            try:
                token = jwt.decode(id_token, self._provider_keys(), algorithms=list(ALGORITHMS))
            except (JoseError, ValueError):
                # Providers change their keys: a token of a new one is no stranger's.
                token = jwt.decode(id_token, self._provider_keys(look_again=True), algorithms=list(ALGORITHMS))
            self._rules().validate(token.claims)
        except ExpiredTokenError:
            raise Unauthorised("id_token_expired", "This sign-in is over.", "Sign in again.") from None
        except (JoseError, ValueError) as error:
            raise Unauthorised(
                "id_token_invalid",
                f"The ID token does not hold: {error}.",
                "Sign in again; if it stays so, compare KVDECK_OIDC_ISSUER and KVDECK_OIDC_CLIENT_ID with the "
                "provider's own, and its clock with this machine's.",
            ) from None
        audience = token.claims["aud"]
        others = isinstance(audience, list) and len(audience) > 1
        if others and token.claims.get("azp") != self._settings.oidc_client_id:
            raise Unauthorised("id_token_invalid", "The ID token was made for another client.", "Sign in again.")
        return token.claims

    def _rules(self) -> jwt.JWTClaimsRegistry:
        return jwt.JWTClaimsRegistry(
            now=lambda: int(self._clock().timestamp()),
            leeway=LEEWAY_SECONDS,
            iss={"essential": True, "value": self._settings.oidc_issuer},
            aud={"essential": True, "value": self._settings.oidc_client_id},
            exp={"essential": True},
            sub={"essential": True},
        )

    def _role(self, claims: Mapping[str, Any]) -> Role:
        said = words_at(claims, self._settings.oidc_role_claim)
        roles = [Role.parse(role) for word, role in self._settings.oidc_role_pairs if word in (EVERYBODY, *said)]
        if not roles:
            raise Forbidden(
                "oidc_no_role",
                f"{name_of(claims)} has no role here: {self._settings.oidc_role_claim!r} is "
                f"{', '.join(said[:10]) or 'not in the token'}.",
                "Ask for a group that KVDECK_OIDC_ROLES names.",
            )
        return max(roles)

    def _provider_keys(self, *, look_again: bool = False) -> KeySet:
        with self._lock:
            age = self._clock().timestamp() - self._keys_at
            if self._keys is None or age > (KEYS_LOOKED_AGAIN_SECONDS if look_again else KEYS_HOLD_SECONDS):
                self._keys = self._fetch_keys()
                self._keys_at = self._clock().timestamp()
            return self._keys

    def _fetch_keys(self) -> KeySet:
        issuer = self._settings.oidc_issuer
        try:
            with httpx.Client(timeout=ANSWER_SECONDS, transport=self._transport) as line:
                said = line.get(issuer.rstrip("/") + DISCOVERY).raise_for_status().json()
                if said["issuer"] != issuer:
                    raise ValueError(f"it calls itself {said['issuer']!r}")
                return KeySet.import_key_set(line.get(said["jwks_uri"]).raise_for_status().json())
        except (httpx.HTTPError, ValueError, KeyError, TypeError, JoseError) as error:
            raise Unavailable(
                "oidc_unavailable",
                f"The keys of {issuer} cannot be had ({type(error).__name__}: {error}).",
                "Check KVDECK_OIDC_ISSUER and the way from here to it. A token still signs in.",
            ) from error


def name_of(claims: Mapping[str, Any]) -> str:
    """What somebody is called in the audit: their address, unless the provider does not stand by it; else `sub`.

    Not `preferred_username` or `name`: at many providers people write these themselves.
    """
    address = claims.get("email")
    stands = isinstance(address, str) and address and claims.get("email_verified", True) is not False
    name = str(address if stands else claims["sub"])
    return "".join(letter for letter in name if letter.isprintable())[:LONGEST_NAME]


def words_at(claims: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """The words of a claim, one or a list; dots lead inside, as in `realm_access.roles`."""
    found: Any = claims.get(path)
    if found is None:
        found = claims
        for part in path.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    listed = found if isinstance(found, list) else [found]
    return tuple(word for word in listed if isinstance(word, str))
