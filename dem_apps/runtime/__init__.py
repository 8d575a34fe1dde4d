"""What every command stands on: settings, run folders, checkpoints, safe files, signals, progress, seeds, devices."""
