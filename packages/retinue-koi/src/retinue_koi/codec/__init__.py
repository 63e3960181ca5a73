"""Pure codecs of KOI identifiers, bundles, events and personalities."""
