"""Signing in: with an identity provider, by a one-time link from the address, or by a token typed into a form."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from controlplane.errors import ControlPlaneError
from dashboard import control, oidc, session


def redeem_link() -> None:
    """Spend the one-time token of the address, if there is one and nobody is signed in."""
    link_token = session.take_link_token()
    if link_token and session.person() is None:
        _redeem(link_token)


def _redeem(link_token: str) -> None:
    try:
        session.sign_in(control.redeem(link_token))
    except ControlPlaneError as error:
        session.leave_notice(f"The link could not be used. {error.message} {error.hint}")


def take_id_token() -> None:
    """Sign in whoever the identity provider vouches for in this browser; once, and not who has just signed out."""
    token = oidc.id_token(control.settings())
    if token is None:
        return
    if session.recall("signed_out") is True:
        st.logout()  # the provider's cookie would sign them in again
    if session.person() is not None or session.recall("id_token_tried") == token:
        return
    session.remember("id_token_tried", token)
    try:
        session.sign_in(control.exchange(token))
    except ControlPlaneError as error:
        session.leave_notice(f"{error.message} {error.hint}")


def go_on(pages: Mapping[str, StreamlitPage]) -> None:
    """Lead to the page that was asked for before the identity provider's, with its filters; once."""
    wanted = session.recall("wanted")
    if not isinstance(wanted, str):
        return
    session.forget("wanted")
    parts = urlsplit(wanted)
    page = pages.get(parts.path.rstrip("/").rsplit("/", 1)[-1])
    if page is not None:
        st.switch_page(page, query_params=dict(parse_qsl(parts.query)))


def page() -> None:
    """The sign-in page. A page, because Streamlit keys widgets by page: drawn outside, it would lose what is typed."""
    _, middle, _ = st.columns([1, 1.4, 1])
    with middle:
        st.title("kvdeck")
        notice = session.take_notice()
        if notice:
            st.warning(notice, icon=":material/warning:")
        provider = oidc.provider_name(control.settings())
        if provider and st.button(
            f"Sign in with {provider}", icon=":material/login:", type="primary", key="kv_oidc", width="stretch"
        ):
            session.forget("signed_out")
            st.login()
        st.markdown(
            ("Or sign in with a token. " if provider else "Sign in with a token. ")
            + "`kvdeck up` prints a one-time link that signs you in by itself."
        )
        with st.form("kv_sign_in", border=True):
            token = st.text_input("Token", type="password", autocomplete="off", placeholder="kvd_…")
            sent = st.form_submit_button("Sign in", type="secondary" if provider else "primary")
        st.caption("A new token: `kvdeck token create NAME --role operator`. Viewers look, operators also act.")
        if sent:
            _try(token.strip())


def _try(token: str) -> None:
    if not token:
        st.error("Paste a token first.", icon=":material/block:")
        return
    try:
        session.sign_in(control.identify(token))
    except ControlPlaneError as error:
        st.error(f"**Not signed in.** {error.message} {error.hint}".strip(), icon=":material/block:")
        return
    st.rerun()
