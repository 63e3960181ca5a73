"""The step ``think``: a loop of a model that calls skills, as recorded calls of a run."""
