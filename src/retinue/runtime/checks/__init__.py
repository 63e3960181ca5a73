"""The checks of ``retinue doctor``. No check changes anything except a temporary file."""
