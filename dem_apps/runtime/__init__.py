"""The base of every command: settings, run folders, checkpoints, safe files, signals, progress, seeds, devices."""
