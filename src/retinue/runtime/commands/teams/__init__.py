"""Commands of teams: read and lock a folder, pack, pull and verify a digest, start, check and stop it."""
