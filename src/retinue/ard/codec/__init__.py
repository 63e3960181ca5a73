"""Pure codecs of ARD."""
