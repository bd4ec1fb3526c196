"""Signing in to the dashboard in a real Chromium: an identity provider's page and back, second tabs, signing out."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from dashboard_stage import PATIENCE_MS, Deck, Visit
from databases import free_port
from oidc_support import whole_provider
from playwright.sync_api import expect
from sqlalchemy import select

from controlplane.store import models as m

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
PEOPLE = (
    {"sub": "ann", "email": "ann@example.org", "groups": ["kv-ops"]},
    {"sub": "vic", "email": "vic@example.org", "groups": ["kv-lookers"]},
    {"sub": "sam", "email": "sam@example.org", "groups": ["sales"]},
)


@pytest.fixture(scope="module")
def deck(tmp_path_factory) -> Iterator[Deck]:
    folder = tmp_path_factory.mktemp("deck")
    secret = folder / "client-secret"
    secret.write_text("the client's own\n")
    with whole_provider(free_port(), PEOPLE) as issuer:
        made = Deck(
            folder,
            {
                "KVDECK_OIDC_ISSUER": issuer,
                "KVDECK_OIDC_CLIENT_ID": "kvdeck",
                "KVDECK_OIDC_CLIENT_SECRET_FILE": str(secret),
                "KVDECK_OIDC_ROLES": "kv-ops=operator,kv-lookers=viewer",
            },
        )
        yield made
        made.close()


def _sign_in(visit: Visit, person: str, at: str = "") -> None:
    # The provider's page wants a style sheet of another host and an icon it lacks: neither is ours.
    visit.context.route(lambda url: urlsplit(url).hostname != "127.0.0.1", lambda route: route.fulfill(body=""))
    visit.context.route("**/favicon.ico", lambda route: route.fulfill(body=""))
    visit.page.goto(f"{visit.deck.address}{at}")
    visit.page.get_by_role("button", name="Sign in with 127.0.0.1").click()
    assert visit.strangers == set()
    visit.page.get_by_role("button", name=person).click()
    visit.page.wait_for_url(f"{visit.deck.address}/**")
    visit.strangers.clear()


def test_the_provider_vouches_and_the_claim_gives_the_role(visit):
    _sign_in(visit, "ann")
    visit.see("Signed in as ann@example.org (operator)")
    visit.open("Policies")
    expect(visit.page.get_by_role("button", name="Dry run").first).to_be_visible()
    visit.shoot("signed_in_by_oidc")
    with visit.deck.store.read() as session:
        row = session.scalars(select(m.Audit).where(m.Audit.actor == "ann@example.org")).first()
    assert (row.role, row.action) == ("operator", "open_session")


def test_a_link_to_a_page_leads_there_through_the_provider_with_its_filters(visit):
    _sign_in(visit, "vic", at="/prefixes?ns=tenant-b&range=6h")
    visit.see("Signed in as vic@example.org (viewer)")
    visit.page.wait_for_url("**/prefixes?*ns=tenant-b*")
    assert "range=6h" in visit.page.url
    expect(visit.page.get_by_role("heading", name="Prefixes").first).to_be_visible()


def test_a_viewer_by_claim_sees_no_buttons_and_signing_out_is_not_undone_by_the_cookie(visit):
    _sign_in(visit, "vic")
    visit.see("Signed in as vic@example.org (viewer)")
    visit.open("Policies")
    expect(visit.page.get_by_role("button", name="Dry run")).to_have_count(0)
    visit.page.get_by_role("button", name="Sign out").click()
    visit.page.get_by_role("button", name="End session").click()  # the provider's own, which it then ends too
    visit.page.wait_for_url(f"{visit.deck.address}/**")
    visit.strangers.clear()
    visit.page.goto(visit.deck.address)
    expect(visit.page.get_by_label("Token", exact=True)).to_be_visible(timeout=PATIENCE_MS)
    visit.page.wait_for_timeout(2000)
    expect(visit.page.get_by_label("Token", exact=True)).to_be_visible()


def test_who_has_no_role_is_told_which_claim_said_what(visit):
    _sign_in(visit, "sam")
    visit.see("sam@example.org has no role here: 'groups' is sales.")
    visit.shoot("sign_in_no_role")


def test_a_second_tab_takes_the_session_over_and_goes_when_the_first_signs_out(visit):
    visit.page.goto(f"{visit.deck.address}/?token={visit.deck.tokens['link']}")
    visit.see("Signed in as local operator (admin)")
    visit.page.wait_for_timeout(1500)
    second = visit.context.new_page()
    second.goto(f"{visit.deck.address}/audit")
    expect(second.get_by_text("Signed in as local operator (admin)")).to_be_visible(timeout=PATIENCE_MS)
    visit.page.get_by_role("button", name="Sign out").click()
    expect(visit.page.get_by_label("Token", exact=True)).to_be_visible(timeout=PATIENCE_MS)
    expect(second.get_by_label("Token", exact=True)).to_be_visible(timeout=PATIENCE_MS)
