"""The base of every command.

It has settings, run folders, checkpoints, safe files, signals, progress, seeds and devices.
"""
