"""Scripts of limited subprocesses, beside the module under test; only ``calls`` is imported elsewhere."""
