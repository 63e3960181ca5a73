"""Files of results and artifacts that pages show and browsers fetch."""
