"""Pure codecs of A2A."""
