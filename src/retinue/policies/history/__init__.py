"""Policies against past calls: what another set would have decided, and the narrowest that permits them."""
