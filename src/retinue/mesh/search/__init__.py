"""Full-text search over skills and agents."""
