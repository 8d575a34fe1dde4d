"""Networks, their batch normalisation, and how large images are predicted."""
