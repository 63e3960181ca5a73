"""The list prices of known models, from the data that comes with the library of the back-end ``api``."""

from __future__ import annotations

from decimal import Decimal

from retinue.llm.spec import Prices, Provider

_SAMPLE_TOKENS = 1_000
"""Small, since some providers charge more for long prompts."""

_MILLION = 1_000_000


def find_prices(provider: Provider | None, model: str) -> Prices | None:
    """US dollars for a million tokens; None for an unknown model, or without the library.

    Nothing is fetched: the prices are those of the library's release.
    """
    if provider is None or not model:
        return None
    try:
        # part of the extra, and not needed by a command
        from genai_prices import Usage, calc_price
    except ImportError:
        return None

    def price(usage: Usage) -> float:
        found: Decimal = calc_price(usage, model_ref=model, provider_id=provider).total_price
        return float(found) / _SAMPLE_TOKENS * _MILLION

    try:
        return Prices(price(Usage(input_tokens=_SAMPLE_TOKENS)), price(Usage(output_tokens=_SAMPLE_TOKENS)))
    except LookupError:
        return None
