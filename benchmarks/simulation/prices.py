"""Prices of common instances, on demand, by the hour.

They are list prices of 2025 for Linux in a large region, written down from memory. The price lists were not
read, because these benchmarks use no network: check the prices before you plan with them.
"""

from __future__ import annotations

from dataclasses import dataclass

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Instance:
    """One size: ``price`` in US dollars an hour, ``memory_gb`` in 10⁹ bytes."""

    name: str
    cores: int
    memory_gb: float
    price: float


INSTANCES = (
    Instance("AWS c7g.large", 2, 4, 0.0725),
    Instance("AWS c7g.xlarge", 4, 8, 0.145),
    Instance("AWS m7g.large", 2, 8, 0.0816),
    Instance("Google e2-standard-2", 2, 8, 0.067),
    Instance("Azure D2as v5", 2, 8, 0.086),
    Instance("Hetzner CCX13", 2, 8, 0.021),
)


def dollars_per_million(instance: Instance, hubs: int, calls_per_s: float) -> float:
    """US dollars for a million calls, if each hub is one instance."""
    return hubs * instance.price / SECONDS_PER_HOUR / calls_per_s * 1e6
