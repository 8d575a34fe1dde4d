"""Parts of one training: what an optimiser's step is made of, and the run that is scored, saved and stopped."""
