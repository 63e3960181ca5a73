"""Pure codecs between wire forms and core; no I/O, no async."""
