"""Pure: KOI identifiers, bundles, events and personalities to and from JSON."""
