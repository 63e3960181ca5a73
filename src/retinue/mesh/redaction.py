"""Tokens in text that is kept: whatever looks like one is cut out before it reaches a log or the audit."""

from __future__ import annotations

import re

HIDDEN = "[token]"
MIN_TOKEN_LENGTH = 20
"""Nothing shorter is taken for one."""

_TOKENS = re.compile(
    r"""
      rtn[jm]?_[\w.~+/=-]{16,}                           # ours (drivers.tokens, mesh_bearer, joins, state)
    | eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*                   # a JSON Web Token
    | (?<=bearer[ ])[\w.~+/=-]{16,}                      # anybody's, as it stands in a header
    | (?<=basic[ ])[A-Za-z0-9+/=]{16,}
    """,
    re.VERBOSE | re.IGNORECASE,
)


def hide_tokens(text: str) -> str:
    """The text with ``[token]`` for each token in it."""
    return _TOKENS.sub(HIDDEN, text)
