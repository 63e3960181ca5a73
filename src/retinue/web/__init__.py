"""What every HTTP endpoint shares: security, errors, tokens, the HTTP client."""
