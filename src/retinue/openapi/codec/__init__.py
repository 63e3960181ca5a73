"""Pure: OpenAPI documents to skills, arguments to requests, responses to values."""
