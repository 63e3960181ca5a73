"""A toy protocol for Retinue: ``GET /toy`` lists skills, ``POST /toy/AGENT/SKILL`` calls one."""
