"""Loads the files of processes: agents, cards, files watched for changes, and settings read again."""
