"""The teams of a hub as parts."""
