"""Approvals at a hub: the skills about them, questions to clients, and notices to a chat system."""
