"""What ``retinue doctor`` checks. No check changes anything except a temporary file."""
