"""One run of the app: signs in, draws the frame every page shares, runs the page. Started by `python -m dashboard`."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from dashboard import data, session
from dashboard.components import header, signin, tab
from dashboard.pages import alerts, audit, caps, fleet, memory, overview, policies, prefixes, validations
from dashboard.theme import CSS, PAGE_ICON

PAGES: tuple[tuple[Callable[[], None], str, str, str], ...] = (
    (overview.page, "Overview", "overview", ":material/monitoring:"),
    (prefixes.page, "Prefixes", "prefixes", ":material/account_tree:"),
    (validations.page, "Validations", "validations", ":material/fact_check:"),
    (memory.page, "Memory", "memory", ":material/memory:"),
    (fleet.page, "Fleet", "fleet", ":material/dns:"),
    (caps.page, "Caps and mode", "caps", ":material/tune:"),
    (policies.page, "Policies", "policies", ":material/rule:"),
    (alerts.page, "Alerts", "alerts", ":material/notifications:"),
    (audit.page, "Audit", "audit", ":material/history:"),
)


def main() -> None:
    """One run of the script: Streamlit calls it for every interaction."""
    st.set_page_config(page_title="kvdeck", page_icon=PAGE_ICON, layout="wide", menu_items={})
    st.html(CSS)
    someone = session.person()
    if someone is not None and not data.token_still_holds(someone.token, someone.role):
        session.sign_out("Your session has ended: sign in again.")
    signin.redeem_link()
    signin.take_id_token()
    tab.remember_or_restore()
    someone = session.person()
    # The same addresses for everybody: a link to a page must lead there after the sign-in, too.
    pages = {
        path: st.Page(
            draw if someone else signin.page, title=title, url_path=path, icon=icon, default=path == "overview"
        )
        for draw, title, path, icon in PAGES
    }
    if someone is None:
        st.navigation(list(pages.values()), position="hidden").run()
        return
    session.remember("pages", pages)
    current = st.navigation(list(pages.values()))
    signin.go_on(pages)
    header.draw(someone)
    current.run()
