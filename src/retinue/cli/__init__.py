"""The command line: a static table of commands, each imported when it is asked for (``program``)."""
