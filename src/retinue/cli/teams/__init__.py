"""Commands of teams: lock, pack, up, down, team and diff."""
