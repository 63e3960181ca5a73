"""The command line: `program` holds a static table of commands, each imported when it is used."""
