"""Language models as agents: back-ends, budgets, and the skills of a model agent."""
