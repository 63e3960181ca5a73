"""Pure codecs of A2A: dicts to calls and back, without I/O."""
