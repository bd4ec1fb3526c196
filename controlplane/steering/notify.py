"""Tells the outside of alerts: one JSON POST to the webhook of the settings for each that fires or is over."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict

import httpx

from controlplane.steering.alerts import Change

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 3.0


def post_changes(url: str, changes: Sequence[Change]) -> int:
    """Posts each change once; a receiver that is down costs a timeout and a log line. Returns the number sent."""
    sent = 0
    for change in changes if url else ():
        try:
            httpx.post(url, json=asdict(change), timeout=TIMEOUT_SECONDS).raise_for_status()
            sent += 1
        except httpx.HTTPError as error:
            log.warning("the webhook did not take alert %s of %s: %s", change.rule, change.engine_id, error)
    return sent
