"""Circuit breakers and measured statistics of agents."""
