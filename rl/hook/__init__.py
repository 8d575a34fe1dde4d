"""The entropy term of Stable-Baselines3's on-policy algorithms."""
