"""What a run of rl.train logs and writes, for :mod:`dem_apps.report`; docs/metrics.md explains each key."""

from __future__ import annotations

from collections.abc import Iterator

from dem_apps.runtime.metrics_info import Checkpoint, Metric, MetricsInfo, Score

#: Both are reported everywhere: one and the same policy can score very differently under the two.
ACTIONS = ("sampled", "greedy")
_OBJECTIVE = "as trained; values of different objectives cannot be compared"

METRICS = (
    Metric("eval/mean_return_sampled", "sampled", "Return", "the environment's reward", "higher", "evaluation",
           std="eval/std_return_sampled"),
    Metric("eval/mean_return_greedy", "greedy", "Return", "the environment's reward", "higher", "evaluation"),
    *(Metric(f"eval/success_rate_{actions}", actions, "Success rate", "share of evaluation episodes", "higher", low=0,
             high=1) for actions in ACTIONS),
    Metric("train/policy_entropy", "policy entropy", "Policy entropy", "nats", low=0),
    Metric("rollout/ep_rew_mean", "mean of the last 100 episodes", "Return in training", "the environment's reward",
           "higher", "sampled actions"),
    Metric("train/entropy_objective", "entropy objective", "Entropy objective", "nats", note=_OBJECTIVE),
    *(Metric(f"eval/std_return_{actions}", f"standard deviation of the return over episodes, {actions}",
             unit="the environment's reward") for actions in ACTIONS),
    Metric("eval/success_rate", "success rate, sampled", better="higher"),
    Metric("rollout/ep_len_mean", "length of an episode in training", unit="steps"),
    Metric("rollout/success_rate", "success rate in training", better="higher"),
    Metric("train/ent_coef", "weight of the entropy term"),
    Metric("train/entropy_loss", "minus the entropy term", unit="nats"),
    Metric("train/approx_kl", "KL divergence from the policy that acted", unit="nats"),
    Metric("train/clip_fraction", "share of samples that were clipped"),
    Metric("train/clip_range", "clip range"),
    Metric("train/clip_range_vf", "clip range of the value function"),
    Metric("train/policy_gradient_loss", "loss of the policy (PPO)"),
    Metric("train/policy_loss", "loss of the policy (A2C)"),
    Metric("train/value_loss", "loss of the value function", better="lower"),
    Metric("train/loss", "loss of the last minibatch"),
    Metric("train/explained_variance", "explained variance of the returns", better="higher", note="up to 1"),
    Metric("train/learning_rate", "learning rate"),
    Metric("train/n_updates", "updates"),
    Metric("train/std", "standard deviation of the policy"),
)  # fmt: skip


def _scores(policy: str, prefix: str, note: str) -> Iterator[Score]:
    """Of one policy; ``prefix`` is that of its keys and ``policy`` that of its titles."""
    for actions in ACTIONS:
        yield Score(f"{prefix}{actions}.mean_return", f"return, {policy}{actions}", better="higher", note=note,
                    std=f"{prefix}{actions}.std_return")  # fmt: skip
    for actions in ACTIONS:
        yield Score(f"{prefix}{actions}.success_rate", f"success %, {policy}{actions}", better="higher", note=note,
                    scale=100, digits=1)  # fmt: skip
    for actions in ACTIONS:
        yield Score(f"{prefix}{actions}.mean_length", f"length, {policy}{actions}", note=note, digits=1)


def described_metrics() -> MetricsInfo:
    """The description of a run."""
    return MetricsInfo(
        heading="Reinforcement learning",
        settings=("env", "algo", "loss", "ent_coef"),
        steps="timesteps",
        metrics=METRICS,
        scores=(
            *_scores("", "", "last policy"),
            Score(
                "steps_without_goal",
                "steps to the goal",
                better="lower",
                digits=0,
                note="until an evaluation first reached the goal; else all, so that a mean is a restricted mean",
            ),
            *_scores("best policy, ", "best.", "chosen by evaluation in training"),
        ),
        checkpoints=(
            Checkpoint("last", "end of training", "sampled.mean_return", "step"),
            Checkpoint("best", "evaluation during training", "best.sampled.mean_return", "best.step"),
        ),
        checkpoint_score="return, sampled",
        videos="Episodes",
    )
