"""Pure numerics of the training step: rewards to advantages, schedules, and (in `loss`, which needs torch) losses.

Refuses to guess: rewards that are not finite, and stale data without an importance correction. Called by the
coordinator (what is informative, the learning rate of a step, pass@1) and by the learner.
"""

from prorl_cli.algorithm.groups import (
    correction_refusal,
    group_advantages,
    informative,
    pass_at_1,
    permuted_rewards,
)
from prorl_cli.algorithm.schedules import schedule

__all__ = ["correction_refusal", "group_advantages", "informative", "pass_at_1", "permuted_rewards", "schedule"]
