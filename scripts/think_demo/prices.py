"""Prices in cents."""


def discount(price: int, percent: int) -> int:
    """The price after a discount, rounded down. Raises ValueError for a discount outside 0 to 100."""
    if not 0 <= percent <= 100:
        raise ValueError("percent is between 0 and 100")
    return price * (100 - percent) // 100


def format_price(cents: int) -> str:
    """Cents as euros, such as 12.50."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02}"
