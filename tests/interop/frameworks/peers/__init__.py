"""Programs of agent frameworks that run in environments of their own.

A job is ``{"url", "token", "command", "environment", "calls", "answer"}``: ``command`` None = the hub at
``url``, else a program that speaks MCP over its standard streams; ``calls`` are pairs of a tool and its
arguments; ``answer`` None = no question is answered. The result is ``{"tools", "seen"}``: the names that were
listed, and for each call what the model saw of it, ``{"failed", "text", "value", "images"}``, or
``{"raised"}`` where the framework ended the run.
"""
