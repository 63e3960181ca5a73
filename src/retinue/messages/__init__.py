"""Messages of agents as performatives (seed 000): envelopes, conversations, ``POST /messages``."""
