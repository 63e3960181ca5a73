"""Prices of common instances, on demand, by the hour.

They are list prices for Linux in a large region. One was read on a page that names its date. The others were
written down from memory and are of 2025, because the price lists could not be reached. Check the prices
before you plan with them.
"""

from __future__ import annotations

from dataclasses import dataclass

SECONDS_PER_HOUR = 3600.0

_MEMORY = "memory, 2025"


@dataclass(frozen=True, slots=True)
class Instance:
    """One size: ``price`` in US dollars an hour, ``memory_gb`` in 10⁹ bytes.

    ``source`` is that of the price, with its date.
    """

    name: str
    cores: int
    memory_gb: float
    price: float
    source: str = _MEMORY


INSTANCES = (
    Instance("AWS c7g.large", 2, 4, 0.0725),
    Instance("AWS c7g.xlarge", 4, 8, 0.145),
    Instance("AWS m7g.large", 2, 8, 0.0816, "factualminds.com on EC2 in us-east-1, 2026-06-17"),
    Instance("Google e2-standard-2", 2, 8, 0.067),
    Instance("Azure D2as v5", 2, 8, 0.086),
    Instance("Hetzner CCX13", 2, 8, 0.021, "memory, 2025, before the increase of 2026-04-01"),
)


def dollars_per_million(instance: Instance, hubs: int, calls_per_s: float) -> float:
    """US dollars for a million calls, if each hub is one instance."""
    return hubs * instance.price / SECONDS_PER_HOUR / calls_per_s * 1e6
