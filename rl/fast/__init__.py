"""PPO's rollout and update with SB3's numbers, faster."""
