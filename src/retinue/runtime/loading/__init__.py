"""Loads the files of commands: agents, cards, and files watched for changes."""
