"""Approvals: questions to a person about one call, and the answers, each of which counts for that call."""
