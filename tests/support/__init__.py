"""Helpers of several test files and of the processes that they spawn: ``from support import pages``."""
