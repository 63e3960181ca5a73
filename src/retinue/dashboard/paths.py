"""The paths of the dashboard: where its pages begin, and which of them need no token."""

from __future__ import annotations

ROOT = "/ui"
OPEN_PATHS = (f"{ROOT}/static/", f"{ROOT}/sign-in", f"{ROOT}/link/")
"""Path prefixes that need no token: style and scripts, and the ways to sign in."""

PAGES = ("/",)
PAGE_PREFIXES = (f"{ROOT}/",)
"""Paths of pages, and prefixes of them."""
