"""Rewards: named functions that say what a finished trajectory is worth.

A new one is a function under `@reward`, in any file of this folder. In a package of your own, declare it as an entry point
of the group `dragoman.rewards`. `train.reward` names it, or a weighted sum of several:

    @reward(bounds=(0, 1))
    def brevity(question, trajectory, passages, *, words: int = 5) -> float | None:
        return None if trajectory.answer is None else float(len(trajectory.answer.split()) <= words)

`train.reward: "cover_em + 0.5 * brevity(words=3)"` is the same as `{cover_em: 1, brevity: {weight: 0.5, words: 3}}`.
"""

from dragoman.rewards.base import RewardFunction as RewardFunction
from dragoman.rewards.base import Trajectory as Trajectory
from dragoman.rewards.base import reward as reward
from dragoman.rewards.composite import Reward as Reward
from dragoman.rewards.composite import expression as expression
from dragoman.rewards.discovery import reward_names as reward_names
