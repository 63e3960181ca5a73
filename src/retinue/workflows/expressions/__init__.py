"""CEL expressions and templates."""
