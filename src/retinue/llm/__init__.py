"""Language models as agents: back-ends, budgets, and the skills of an agent that is a model."""
