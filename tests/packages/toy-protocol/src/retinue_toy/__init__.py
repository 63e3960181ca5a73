"""A toy protocol for Retinue: ``GET /toy`` lists agents, ``POST /toy/AGENT/SKILL`` calls a skill."""
