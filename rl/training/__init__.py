"""From settings to a model that trains, and back from a checkpoint."""
