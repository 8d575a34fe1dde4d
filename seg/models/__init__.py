"""Networks, their batch normalisation, and how they are read back from runs."""
