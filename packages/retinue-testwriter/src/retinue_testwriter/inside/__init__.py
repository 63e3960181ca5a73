"""Scripts that run in limited subprocesses with the module under test; only ``calls`` is also imported."""
