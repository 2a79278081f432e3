"""Settings of the stages that train, and of what they learn from: `seeds`, `sft`, `rl`, `debate`, `label`, `chain` and `pairs`."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dragoman.core.settings import Section
from dragoman.corpus.settings import Source
from dragoman.engines.settings import EngineParams
from dragoman.rewards.settings import RewardSetting, known_reward
from dragoman.rollout.exploration import Exploration
from dragoman.training import algorithms


def _known(name: str) -> str:
    if name not in algorithms.names():
        raise ValueError(f"unknown algorithm {name!r}: choose from {', '.join(algorithms.names())}")
    return name


AlgorithmName = Annotated[str, AfterValidator(_known)]


def _known_shaping(setting: Any) -> str | None:
    return None if setting is None else known_reward(setting)


Shaping = Annotated[str | None, BeforeValidator(_known_shaping)]


class TrainParams(Section):
    """What is trained, on what, for what: stages `seeds`, `sft` and `rl`."""

    system: str = "c3po"
    dataset: str = "atlas"
    algorithm: AlgorithmName = "ppo"
    """What stage rl does: multi-agent PPO (C-3PO), MyGO (Mujica-MyGO), GRPO, or self-training (mRAG)."""
    reward: RewardSetting = "cover_em"
    """A reward by its name, or a weighted sum: `cover_em + 0.5 * f1`, or a mapping of names to weights and parameters."""
    questions: Annotated[tuple[Source, ...], Field(min_length=1)] = ("gold",)
    """Those of the dataset, those of stage `synthesize`, or both mixed."""
    curriculum: bool = False
    """Stage rl: easy questions first, by the labels of stage `synthesize` (`synthesize.draws`)."""


class SeedsParams(Section):
    """Stage `seeds`: trajectories to warm up on, by rejection sampling (C-3PO sections 5.2 and 6.1)."""

    questions: int | None = Field(None, ge=1)
    """How many training questions; None takes all."""
    solutions: int = Field(4, ge=1)
    """Most trajectories that are kept of a question."""
    min_reward: float = Field(1.0, ge=0)
    """What a trajectory must have earned; 0 keeps each that has a reward, for an oracle, whatever the LLM made of it."""
    min_advantage: float = Field(0.0, ge=0, le=1)
    """By how much an action's credit must exceed the mean of its siblings; 0 takes every action of a kept trajectory."""
    min_credit: float = Field(0.5, ge=0, le=1)
    """A kept trajectory's action needs at least this expected reward."""
    first: Literal["cheapest", "all"] = "cheapest"
    """Of a question's first decisions that led to a solution, keep the one with the fewest decisions to follow, or all."""
    max_share: float = Field(0.6, gt=0, le=1)
    """Most of the first decisions that one kind of them may have, then most of the samples that one role may have. What is more is
    left out at random."""
    shots: int = Field(0, ge=0)
    """In-context examples that the sampler sees and the trained proxy will not need."""
    max_samples: int | None = Field(None, ge=1)
    """Most samples in all, taken at random."""
    concurrency: int = Field(16, ge=1)
    exploration: Exploration = Exploration()
    teacher: EngineParams | None = None
    """A model to sample from instead of the untrained proxy, such as a server's."""


class AdapterParams(Section):
    """A LoRA adapter on all linear layers."""

    rank: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)
    layers: int | None = Field(None, ge=1)
    """Only the last so many layers, which saves the backward pass through the others; None takes all."""


class SftParams(Section):
    """Stage `sft`: the warm-up (C-3PO table 6)."""

    adapter: AdapterParams | None = None
    """None trains all weights."""
    lr: float = Field(4e-5, gt=0)
    batch_size: int = Field(512, ge=1)
    epochs: int = Field(3, ge=1)
    warmup_ratio: float = Field(0.03, ge=0, le=1)
    max_tokens: int = Field(4096, ge=1)
    """Longer samples are left out, and counted."""
    micro_batch: int = Field(4, ge=1)
    """Samples in one forward pass."""
    micro_batch_tokens: int = Field(8192, ge=1)
    """At marks, instead of the one before: tokens in one forward pass, padding included."""
    processes: int = Field(1, ge=1)
    """That train together on this machine, one for each GPU. Each has its share of the micro-batches; the result is the same."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """What is computed in; the weights that are trained are float32 in any case. `auto` is as that of engines."""
    layers: int | None = Field(None, ge=1)
    """At marks: the proxy's depth. It gets the first so many layers of the model; None takes all."""
    rounds: int = Field(0, ge=0)
    """At marks: how often the policy also learns in the states that it comes to itself, with an oracle's labels."""
    visits: int = Field(300, ge=1)
    """Training questions that it visits in each of these rounds."""
    replay: float = Field(0.33, ge=0, le=1)
    """The share of the seeds that it sees again in each of these rounds."""
    final_lr: float = Field(0.0, ge=0, le=1)
    """What the learning rate falls to, as a share of `lr`."""
    next_lr: float = Field(0.4, gt=0)
    """The learning rate of these rounds, as a share of `lr`."""
    dev_questions: int = Field(50, ge=1)
    """Greedy answers to so many dev questions choose the checkpoint."""
    shaping: Shaping = None
    """Rewards that are added to `train.reward` to choose by, where they are known."""
    roles: tuple[str, ...] = ()
    """Train only these, which get weights of their own; the others keep those that they have. Empty for all, in one model."""
    concurrency: int = Field(32, ge=1)


class GuardParams(Section):
    """When training has collapsed: it stops, and the best policy so far is kept.

    A step is a free token, or at marks a choice or an option of a selection.
    """

    max_kl: float = Field(1.0, gt=0)
    """Mean log-ratio to the reference, in nats a step."""
    min_entropy: float = Field(0.0, ge=0)
    """In nats a step."""
    min_valid_actions: float = Field(0.5, ge=0, le=1)
    max_engine_difference: float = Field(0.5, gt=0)
    """Mean |log-probability of the trainer - of the engine|, in nats a step. With `max_staleness` it holds what was learnt since."""

    def broken_by(self, row: dict[str, Any]) -> str:
        """What is wrong in a row of the history; empty when nothing is. What an algorithm does not measure is not judged."""
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                return f"{name} is {value}"
        for name, least, most in (
            ("kl", -math.inf, self.max_kl),
            ("entropy", self.min_entropy, math.inf),
            ("valid_actions", self.min_valid_actions, math.inf),
            ("engine_difference", 0.0, self.max_engine_difference),
        ):
            if name in row and not least <= row[name] <= most:
                return f"{name} is {row[name]:.3f}, beyond its guard"
        return ""


class MygoParams(Section):
    """What only MyGO has (section 3.3 and appendix D)."""

    attempts: int = Field(16, ge=1)
    """Most trajectories drawn for a question in an iteration, one after the other until one passes."""
    threshold: float = Field(0.5, gt=0)
    """What a trajectory must earn to pass, in the first iteration; it rises with the mean reward of first attempts."""
    progressive: bool = True
    """Whether it rises, as in the paper. There it is fixed offline alone (appendix E)."""
    offline: bool = False
    """Draw every trajectory from the warm-up, and never from the policy that learns (appendix E). The threshold is then fixed."""
    patience: int = Field(3, ge=1)
    """The run stops after so many iterations in a row in which nothing passed."""


class GrpoParams(Section):
    """What only GRPO has (Shao et al. 2024), over siblings (`grpo`) or over whole trajectories (`trajectory_grpo`)."""

    group: int = Field(8, ge=1)
    """`trajectory_grpo`: G, trajectories drawn of each question of an iteration."""
    kl_coef: float = Field(0.04, ge=0)
    """Weight of the divergence from the warm-up in the loss, where advantages have unit variance; PPO has it in the reward."""
    length_norm: bool = True
    """`grpo`: an action counts by the mean over its free tokens, or the options it was scored at. False: by their sum, so that a
    selection of many passages weighs as much in each of them as a choice of one does (Liu et al. 2025)."""


class SelftrainParams(Section):
    """What only self-training has (mRAG, section 3.2 and appendix D.2)."""

    trajectories: int = Field(8, ge=1)
    """T, trajectories drawn of each question."""
    most: int = Field(3, ge=1)
    """Of trajectories that earned the same, so many are kept."""
    above: float = 0.0
    """The best must have earned more than this, else its question teaches nothing. The paper has no such bound."""
    only_contrasts: bool = False
    """Leave out questions of which all trajectories earned the same: none of them is better than the others. The paper learns
    from `most` of them."""
    patience: int = Field(3, ge=1)
    """The run stops after so many iterations in a row in which nothing was kept."""
    redraw: bool = True
    """Each iteration draws anew, from the policy that the one before it left, and learning goes on from there. The paper draws once,
    before it learns."""


class RlParams(Section):
    """Stage `rl`: multi-agent PPO (C-3PO table 7), MyGO, GRPO or self-training, by `train.algorithm`. What not all use says who
    does."""

    iterations: int = Field(100, ge=1)
    questions: int = Field(64, ge=1)
    """In an iteration, a tree for each, or with MyGO its attempts, with self-training its trajectories."""
    max_minutes: float | None = Field(None, gt=0)
    """No iteration begins later than this after the command has, and the best policy so far is kept: for machines that are lent.
    Learning rates fall as if there were no such limit. To go on, start another run from the policy that is left."""
    exploration: Exploration = Exploration()
    """MyGO and self-training draw single trajectories: of this they use the temperature and the limits."""
    roles: tuple[str, ...] = ()
    """Train only these; empty for all."""
    own_weights: bool = False
    """Give `roles` weights of their own, which start as those that they shared with others. A system whose roles are each
    trained so has a policy for each, as in MAPS; without it they stay one."""
    only_contrasts: bool = False
    """PPO; GRPO always does. Learn only where siblings earned different credit, and save the passes over prompts where any
    choice did as well (as in the dynamic sampling of DAPO: Yu et al. 2025). Roles then count alike over the states that are left,
    and the KL penalty holds in these alone."""
    adapter: AdapterParams | None = None
    """None trains all weights; the reference of PPO and GRPO is then a second model."""
    critic: Literal["separate", "head", "tree"] = "separate"
    """PPO. A model of its own, as in the paper; a head on the policy's last hidden states; or none: the tree itself tells what a
    state is worth, as the mean credit of the actions drawn in it."""
    shaping: Shaping = None
    """Rewards that are added to `train.reward`, to learn from (all but MyGO) and to choose by on the dev questions, where they are
    known: `0.7 * gold_recall + 0.3 * gold_precision` tells far more of a decision than one answer of the LLM does."""
    price: float = Field(0.0, ge=0)
    """What each step of a trajectory (a decision, a search, a call of the LLM) takes off its reward."""
    policy_lr: float = Field(5e-7, gt=0)
    value_lr: float = Field(5e-6, gt=0)
    """PPO."""
    final_lr: float = Field(0.0, ge=0, le=1)
    """What the learning rates fall to, as a share of those."""
    batch_size: int = Field(1024, ge=1)
    """Actions in an optimizer step."""
    epochs: int = Field(1, ge=1)
    schedule: Literal["cosine", "linear"] = "cosine"
    """How learning rates fall to 0 over the iterations, or over `max_steps` where that is set."""
    warmup_steps: int = Field(0, ge=0)
    """Optimizer steps over which learning rates rise from 0."""
    max_steps: int | None = Field(None, ge=1)
    """Most optimizer steps in all, whatever `iterations` and `epochs` would come to."""
    kl_coef: float = Field(0.005, ge=0)
    """PPO: what leaving the warm-up takes off a token's reward."""
    loss: Literal["clip", "gspo", "cispo"] = "clip"
    """PPO and GRPO: what is maximized, see `training.surrogates`. GSPO wants a `clip` below 0.001."""
    clip: float = Field(0.2, gt=0, lt=1)
    """PPO and GRPO."""
    max_ratio: float | None = Field(None, gt=1)
    """PPO and GRPO. An action that became this many times likelier, or less likely, as a whole is not learnt from any more."""
    min_std: float = Field(0.1, gt=0)
    """PPO and GRPO divide advantages by their deviation, but by no less than this: else small differences of credit, such as
    those of a price, would count as much as right against wrong."""
    value_coef: float = Field(0.5, gt=0)
    """PPO, as the next three."""
    gamma: float = Field(1.0, gt=0, le=1)
    lam: float = Field(0.95, ge=0, le=1)
    """With `critic: tree` both are 1, whatever is set."""
    scale_advantages: bool = True
    """Advantages in units of their root mean square over an iteration."""
    importance_cap: float = Field(2.0, ge=1)
    """PPO and GRPO. Most that a token may be weighted up for having been likelier to the trainer than to the engine."""
    max_staleness: int = Field(0, ge=0)
    """All but self-training. Draw for an iteration by the policy of so many iterations before it, while the learner is at work. In
    PPO and GRPO the same weights as for the engine's rounding (`importance_cap`) make up for what was learnt since; MyGO has none."""
    max_grad_norm: float = Field(1.0, gt=0)
    max_tokens: int = Field(6144, ge=1)
    """Longer actions, prompt included, are left out, and counted."""
    micro_batch_tokens: int = Field(8192, ge=1)
    """Tokens in one forward pass, padding included."""
    processes: int = Field(1, ge=1)
    """As `sft.processes`, whatever the algorithm."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """As `sft.dtype`."""
    dev_questions: int = Field(50, ge=1)
    dev_every: int = Field(5, ge=1)
    keep_errors: float = Field(0.0, ge=0)
    """A later policy is kept if it beats the best on the dev questions by so many standard errors of the paired difference."""
    concurrency: int = Field(32, ge=1)
    guards: GuardParams = GuardParams()
    mygo: MygoParams = MygoParams()
    grpo: GrpoParams = GrpoParams()
    selftrain: SelftrainParams = SelftrainParams()

    @model_validator(mode="after")
    def _own_weights_have_an_owner(self) -> RlParams:
        if self.own_weights and not self.roles:
            raise ValueError("own_weights: for which roles? Name them in rl.roles")
        return self

    @model_validator(mode="after")
    def _the_policy_explores(self) -> RlParams:
        if self.exploration.oracle:
            raise ValueError(
                "exploration.oracle: what is learnt from must be what the policy drew; only seeds take oracle actions"
            )
        if not self.exploration.temperature:
            raise ValueError("exploration.temperature: a greedy policy does not explore; raise it above 0")
        return self

    def single(self) -> RlParams:
        """Single trajectories of the policy's own choice: no siblings to compare, or to tell what a state is worth."""
        critic = "head" if self.critic == "tree" else self.critic
        return self.model_copy(
            update={"exploration": self.exploration.single(), "only_contrasts": False, "critic": critic}
        )


class DebateParams(Section):
    """Stage `debate`: snapshots of pools for MAPS (section 3.2)."""

    by: Literal["oracle", "llm"] = "oracle"
    """Who debates: one who knows the gold passages, or three roles of a model (its appendix B)."""
    engine: EngineParams | None = None
    """That model, such as a larger one behind a server; None for the frozen LLM."""
    questions: int | None = Field(None, ge=1)
    """How many training questions; None takes all."""
    narrow: float = Field(0.0, ge=0, le=1)
    """The share of the questions, the first ones, whose searches find `narrow_k` passages each. The others find the system's `k`."""
    narrow_k: int = Field(3, ge=1)
    concurrency: int = Field(32, ge=1)

    @model_validator(mode="after")
    def _an_oracle_asks_no_model(self) -> DebateParams:
        if self.engine is not None and self.by == "oracle":
            raise ValueError("engine: an oracle debates without a model; set debate.by to llm, or leave it out")
        return self


class LabelParams(Section):
    """Stage `label`: what the judge of MAPS is told of snapshots (section 3.4)."""

    draws: int = Field(16, ge=2)
    """Answers from each pool. All right means sufficient, all wrong insufficient; the others are left out."""
    temperature: float = Field(1.0, gt=0)
    score: Literal["em", "cover_em"] = "cover_em"
    """When an answer is right. The paper's answer agent is trained for `em`; an LLM answers in sentences."""
    samples: int | None = Field(None, ge=1)
    """Most labels that are kept, drawn at random; None keeps all."""
    concurrency: int = Field(32, ge=1)


ChainStep = Literal["debate", "answer-1", "answer-2", "query", "label", "judge", "evaluate"]
"""What stage `chain` does, in this order."""
TRAINED: tuple[ChainStep, ...] = ("answer-1", "answer-2", "query", "judge")
"""The steps that leave a policy, in their order."""


class ChainParams(Section):
    """Stage `chain`: a policy for each agent of MAPS (sections 3.2 to 3.4)."""

    rollouts: int = Field(8, ge=2)
    """Actions that are drawn in each state of the agent that is trained, and compared with each other."""
    alpha: float = Field(0.5, ge=0)
    """Weight of precision and of F1 beside exact match, in the rewards of the answer agent (eq. 4 and 5)."""
    words: int = Field(10, ge=1)
    """An answer of more words costs 1 (eq. 3)."""
    start: str | None = None
    """The policy that the first step starts from, such as the folder of a warm-up; None for the proxy's base, as in the paper."""
    steps: dict[ChainStep, dict[str, Any]] = Field({})
    """What holds in one step alone: settings as in `params.yaml`, such as `query: {rl: {iterations: 300}}`. They win over all others."""


class PairsParams(Section):
    """Stage `pairs`: every one of these systems is trained by every one of these algorithms."""

    systems: tuple[str, ...] = ()
    algorithms: tuple[AlgorithmName, ...] = ()
