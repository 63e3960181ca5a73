"""Scripts that run in limited subprocesses, beside the module under test; nothing of Retinue imports them."""
