"""Pure codecs of messages: performatives, envelopes, payloads, the choice of a skill, signatures."""
