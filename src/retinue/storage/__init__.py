"""SQLite stores, files and the state folder."""
