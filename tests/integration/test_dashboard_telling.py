"""The forms of the Alerts page, against a real control plane: silences for operators, receivers for admins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from steering_support import Deck, running_deck
from streamlit.testing.v1 import AppTest

from controlplane.auth import Role
from controlplane.store.models import Audit, Receiver, Silence
from dashboard import control, data

# Streamlit's caches outside a running app say so, once a call.
pytestmark = pytest.mark.filterwarnings("ignore:.*ScriptRunContext.*")


@pytest.fixture
def deck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deck]:
    with running_deck(tmp_path) as made:
        environment = {"KVDECK_DATABASE_URL": made.store.url, "KVDECK_API_PORT": str(made.settings.api_port)}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        control.settings.cache_clear()
        data.store.cache_clear()
        data.clear()
        yield made
        data.store().dispose()
        data.store.cache_clear()
        control.settings.cache_clear()


def one_page(role: str, token: str) -> None:
    """The Alerts page of somebody who is signed in. Streamlit runs its source alone."""
    from dashboard import session
    from dashboard.pages import alerts

    session.sign_in(session.Person(name="ann", role=role, token=token))
    alerts.page()


def opened(deck: Deck, role: Role) -> AppTest:
    return AppTest.from_function(one_page, args=(role.word, deck.tokens[role]), default_timeout=60).run()


def fill(page: AppTest, **values: str) -> None:
    for key, value in values.items():
        page.text_input(key=key).set_value(value)


def send(page: AppTest, verb: str, why: str, at: int = 0) -> AppTest:
    """Write the reason into the form whose button says so, and send it."""
    reasons = [box for box in page.text_input if box.label.startswith("Reason")]
    reasons[at].set_value(why)
    page = next(button for button in page.button if button.label == verb).click().run()
    assert not page.exception
    return page


def rows(deck: Deck, model: Any) -> list[Any]:
    with deck.store.read() as session:
        return list(session.query(model))


def test_an_operator_silences_what_matches_and_may_not_touch_receivers(deck: Deck) -> None:
    page = opened(deck, Role.OPERATOR)
    assert {box.label for box in page.expander} == {"Silence what matches"}
    fill(page, silence_rule_0="engine_*", silence_group_0="canary")
    send(page, "Silence", "the rack is being moved")
    (silence,) = rows(deck, Silence)
    assert silence.matchers == {"rule": "engine_*", "group": "canary"}
    assert silence.reason == "the rack is being moved"
    assert any("group canary" in text.value for text in opened(deck, Role.OPERATOR).caption)


def test_a_silence_that_matches_nothing_in_particular_is_refused_in_words(deck: Deck) -> None:
    page = send(opened(deck, Role.OPERATOR), "Silence", "all of it")
    assert "a silence needs a matcher" in page.error[0].value
    assert rows(deck, Silence) == []


def test_an_admin_adds_a_receiver_switches_it_off_and_removes_it(deck: Deck) -> None:
    page = opened(deck, Role.ADMIN)
    fill(page, receiver_name_0="on-call", receiver_url_0="https://alerts.example/T0P", receiver_secret_0="s" * 16)
    send(page, "Add", "the on-call phone", at=1)
    (made,) = rows(deck, Receiver)
    assert (made.name, made.url, made.secret) == ("on-call", "https://alerts.example/T0P", "s" * 16)
    page = send(opened(deck, Role.ADMIN), "Switch off", "a holiday", at=2)
    assert [row.enabled for row in rows(deck, Receiver)] == [False]
    page.selectbox(key="receiver_what").select("Remove").run()
    next(box for box in page.text_input if "type on-call" in box.label).set_value("on-call")
    send(page, "Remove", "gone", at=2)
    assert rows(deck, Receiver) == []
    told = [row for row in rows(deck, Audit) if row.action.endswith("_receiver")]
    assert [row.action for row in told] == ["create_receiver", "change_receiver", "remove_receiver"]
    assert "T0P" not in str([(row.before, row.after) for row in told])


def test_a_viewer_sees_no_form(deck: Deck) -> None:
    page = opened(deck, Role.VIEWER)
    assert not page.expander
    assert not page.button
