"""Environments: from a name to what an algorithm sees."""
