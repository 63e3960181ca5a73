"""Commands that find, call and follow agents, skills and runs."""
