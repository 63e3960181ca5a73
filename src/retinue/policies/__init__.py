"""Policies in Cedar: which calls are permitted, forbidden, or decided by a person."""
