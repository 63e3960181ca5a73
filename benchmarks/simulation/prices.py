"""Prices of common instances, on demand, by the hour, for Linux, in Europe, without VAT.

Each price was read from the price list of its provider, at the date that its source names. The price lists of
AWS, Azure and Google were read by the programs of https://github.com/mixxor/eu-cloud-prices (commit ec4a406),
that of Hetzner by its authors. Check the prices before you plan with them.
"""

from __future__ import annotations

from dataclasses import dataclass

SECONDS_PER_HOUR = 3600.0

DOLLARS_PER_EURO = 1.1567
"""The reference rate of the European Central Bank of 2026-08-14, as that repository recorded it."""

HOURS_PER_MONTH = 730.0


@dataclass(frozen=True, slots=True)
class PriceList:
    """Where prices were read, for which region, and when (ISO 8601)."""

    url: str
    region: str
    read_on: str


AWS = PriceList(
    "https://b0.p.awsstatic.com/pricing/2.0/meteredUnitMaps/ec2/USD/current/ec2-ondemand-without-sec-sel/",
    "Frankfurt",
    "2026-08-14",
)
AZURE = PriceList("https://prices.azure.com/api/retail/prices", "West Europe", "2026-08-14")
GOOGLE = PriceList(
    "https://www.gstatic.com/cloud-site-ux/pricing/data/gcp-compute.json", "europe-west1", "2026-05-29"
)
HETZNER = PriceList(
    "https://docs.hetzner.com/general/infrastructure-and-availability/price-adjustment/",
    "Germany",
    "2026-08-17",
)


@dataclass(frozen=True, slots=True)
class Instance:
    """One size: ``price`` in US dollars an hour, ``memory_gb`` in 2³⁰ bytes."""

    name: str
    cores: int
    memory_gb: float
    price: float
    source: PriceList


INSTANCES = (
    Instance("AWS c7g.large", 2, 4, 0.0825, AWS),
    Instance("AWS c7g.xlarge", 4, 8, 0.1649, AWS),
    Instance("AWS m7g.large", 2, 8, 0.0978, AWS),
    Instance("AWS m7g.xlarge", 4, 16, 0.1955, AWS),
    Instance("Google e2-standard-2", 2, 8, 0.075, GOOGLE),
    Instance("Azure D2as v6", 2, 8, 0.0965 * DOLLARS_PER_EURO, AZURE),
    # 51.75 euros a month with 19 % VAT and an IPv4 address
    Instance("Hetzner CCX13", 2, 8, 51.75 / 1.19 / HOURS_PER_MONTH * DOLLARS_PER_EURO, HETZNER),
)


def dollars_per_million(instance: Instance, hubs: int, calls_per_s: float) -> float:
    """US dollars for a million calls, if each hub is one instance."""
    return hubs * instance.price / SECONDS_PER_HOUR / calls_per_s * 1e6
