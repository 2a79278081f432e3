"""Commands that roll out and train."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.cli.command import ALLOW_MISMATCH, SEED, SYSTEM, Alias, command
from dragoman.cli.evaluation import show
from dragoman.cli.processes import divided
from dragoman.pipeline import chain as chain_stage
from dragoman.pipeline import debate as debate_stage
from dragoman.pipeline import gepa as gepa_stage
from dragoman.pipeline import label as label_stage
from dragoman.pipeline import pair as pair_stage
from dragoman.pipeline import rl as rl_stage
from dragoman.pipeline import rollout as rollout_stage
from dragoman.pipeline import seeds as seeds_stage
from dragoman.pipeline import sft as sft_stage
from dragoman.pipeline import warm_up as warm_up_stage
from dragoman.pipeline.project import Project
from dragoman.training import algorithms


@command(SEED, ALLOW_MISMATCH)
async def rollout(project: Project, options: rollout_stage.Options) -> None:
    """Roll a system out on questions: trees for training, or single trajectories.

    Writes episodes.jsonl (everything that happened), samples.parquet (one row an agent call, with credit), metrics.json and
    trees/*.html.

    Example: dragoman rollout --system c3po --tree --limit 8 --out results/trees
    Example: dragoman rollout --system c3po@sft --samples 4 --questions dev.jsonl --out results/samples
    Example: dragoman rollout --tree --shard 1/2; dragoman rollout --tree --shard 2/2; dragoman rollout --tree --merge 2
    """
    options = await divided(options, options.folder(project))
    metrics, reward = await rollout_stage.run(project, options), project.params.train.reward
    trees = ", trees/" if options.tree and not options.shard else ""
    _show_rollout(metrics, options.place(options.folder(project)), reward, trees)


@command(SYSTEM, Alias("--limit", "seeds.questions", "Only the first so many questions.", int), SEED, track=True)
async def seeds(project: Project, options: seeds_stage.Options) -> None:
    """Collect states with the actions to imitate there: those of an oracle that knows gold passages, or the best of sampled trees.

    The oracle acts where `seeds.exploration.oracle` is set. Else the trees are those of the untrained proxy, or of a teacher.

    Example: dragoman seeds
    Example: dragoman seeds --questions train.jsonl --corpus corpus.jsonl --limit 50 --out results/my-seeds
    Example: dragoman seeds --shard 1/2; dragoman seeds --shard 2/2; dragoman seeds --merge 2
    """
    out, reward = options.folder(project), project.params.train.reward
    options = await divided(options, out)
    metrics = await seeds_stage.run(project, options)
    if options.shard:  # what is worth imitating is chosen from all of them
        _show_rollout(metrics, options.place(out), reward)
    else:
        _show_seeds(metrics, out, reward)


@command(SYSTEM, SEED, track=True)
async def sft(project: Project, options: sft_stage.Options) -> None:
    """Warm the proxy up on seed trajectories, and keep the round, or the epoch, that does best on dev.

    Example: dragoman sft
    Example: dragoman sft --samples my-seeds/samples.parquet --questions dev.jsonl --corpus corpus.jsonl --out results/mine
    """
    _show_sft(await sft_stage.run(project, options), options.folder(project), project.params.train.reward)


@command(
    SYSTEM,
    Alias("--algorithm", "train.algorithm", f"{', '.join(algorithms.names())}."),
    Alias("--iterations", "rl.iterations", "How often to roll out and learn.", int),
    SEED,
    track=True,
)
async def rl(project: Project, options: rl_stage.Options) -> None:
    """Train the proxy by reinforcement learning, and keep the policy that earns most on dev, with shaping and price.

    ppo: multi-agent PPO on tree rollouts. mygo: sample until the reward passes a rising threshold, then maximum likelihood.
    grpo: siblings of trees compared with each other. trajectory_grpo: whole trajectories compared, as in Mujica-MyGO's paper.
    selftrain: the best of several trajectories of each question, imitated, as in mRAG's. Any of them trains any system.

    Example: dragoman rl
    Example: dragoman rl --system mujica --algorithm mygo --policy results/mujica-sft --out results/mujica-mygo
    Example: dragoman rl --questions train.jsonl --dev dev.jsonl --corpus corpus.jsonl --policy results/mine --out results/rl2
    """
    _show_rl(await rl_stage.run(project, options), options.folder(project), project.params.train.reward)


@command(
    SYSTEM,
    Alias("--max-metric-calls", "gepa.max_metric_calls", "Most answers that are scored in all.", int),
    SEED,
    track=True,
)
async def gepa(project: Project, options: gepa_stage.Options) -> None:
    """Let a reflection model rewrite the instructions of a system's roles, and train nothing: a baseline for training.

    The model is what the setting gepa.reflection names. The result is a policy as that of rl: evaluate c3po@gepa.

    Example: dragoman gepa --set c3po.prompts=full --set gepa.reflection='{engine: openai, model: M, urls: [http://HOST/v1]}'
    """
    metrics, out = await gepa_stage.run(project, options), options.folder(project)
    reward = project.params.train.reward
    print(
        f"{metrics['candidates']} candidates by {metrics['reflections']} rewritings, {metrics['metric_calls']} answers scored; "
        f"number {metrics['best_candidate']} is best: {reward} {metrics['dev_reward']:.2f} on {metrics['dev_questions']} dev "
        f"questions, {metrics['first']['dev_reward']:.2f} before"
    )
    print(f"rewritten: {', '.join(metrics['rewritten']) or 'none, as no text did better'}")
    print(f"{out}/policies/{metrics['policy']}, instructions/, candidates.jsonl, metrics.json, history.csv")


@command(Alias("--limit", "debate.questions", "Only the first so many questions.", int), SEED, track=True)
async def debate(project: Project, options: debate_stage.Options) -> None:
    """Gather passages for training questions in rounds, and keep each pool on the way: data for the agents of MAPS.

    Example: dragoman debate
    Example: dragoman debate --set debate.by=llm --set maps.k=3 --out results/debate-3
    """
    _show_debate(await debate_stage.run(project, options), options.folder(project))


@command(SEED, ALLOW_MISMATCH, track=True)
async def label(project: Project, options: label_stage.Options) -> None:
    """Label snapshots by the agreement of several answers: samples of the judge of MAPS, for `sft`.

    Example: dragoman label
    Example: dragoman label --snapshots results/debate-3/snapshots.jsonl --policy results/maps/query --out results/label-3
    """
    _show_label(await label_stage.run(project, options), options.folder(project))


@command(SEED, arguments=("steps",), track=True)
async def chain(project: Project, options: chain_stage.Options) -> None:
    """Train each agent of MAPS by itself, from debate to evaluation: all steps, or those that are named.

    Example: dragoman chain
    Example: dragoman chain answer-1 --dataset mine --out results/chain/mine
    """
    out = options.folder(project)
    for step, (own, metrics) in (await chain_stage.run(project, options)).items():
        reward = own.params.train.reward
        match step:
            case "debate":
                _show_debate(metrics, out / step)
            case "label":
                _show_label(metrics, out / step)
            case "judge":
                _show_sft(metrics, out / step, reward)
            case "evaluate":
                show(metrics, out / step)
            case _:
                _show_rl(metrics, out / step, reward)


@command(SEED, name="warm-up", track=True)
async def warm_up(project: Project, options: warm_up_stage.Options) -> None:
    """Warm a system up by rejection sampling, in folders of its own: `seeds`, then `sft`. What `pair` starts from.

    Example: dragoman warm-up mujica
    """
    metrics, out = await warm_up_stage.run(project, options), options.folder(project)
    _show_seeds(metrics["seeds"], out / "seeds", project.params.train.reward)
    _show_sft(metrics["sft"], out / "sft", project.params.train.reward)


@command(SEED, track=True)
async def pair(project: Project, options: pair_stage.Options) -> None:
    """Train a system by an algorithm, and compare it with its warm-up on the same questions.

    Example: dragoman pair mujica mygo
    """
    metrics, out = await pair_stage.run(project, options), options.folder(project)
    _show_rl(metrics["rl"], out / "rl", project.params.train.reward)
    show(metrics["evaluate"], out / "evaluate")


def _show_rollout(metrics: dict[str, Any], out: Path, reward: str, trees: str = "") -> None:
    print(
        f"{metrics['questions']} episodes, {metrics['trajectories']} trajectories, {metrics['nodes']} decisions, "
        f"{metrics['tokens']} tokens in {metrics['seconds']:.0f} s; mean {reward} {metrics['reward']}"
    )
    print(f"{out}/episodes.jsonl, samples.parquet, metrics.json{trees}")


def _show_debate(metrics: dict[str, Any], out: Path) -> None:
    rounds = ", ".join(f"{count} of round {n}" for n, count in metrics["rounds"].items())
    print(f"{metrics['questions']} questions, {metrics['snapshots']} snapshots: {rounds}")
    print(f"{out}/snapshots.jsonl, episodes.jsonl, metrics.json")


def _show_label(metrics: dict[str, Any], out: Path) -> None:
    kinds = ", ".join(f"{count} {kind}" for kind, count in metrics["kinds"].items())
    print(f"{metrics['snapshots']} snapshots: {kinds}, {metrics['dropped']} on which answers differ")
    print(f"{out}/samples.parquet, metrics.json")


def _show_seeds(metrics: dict[str, Any], out: Path, reward: str) -> None:
    grown, kept = metrics["trees"], metrics["kept"]
    earned = (
        f"mean {reward} {grown['reward']}" if grown["reward"] is not None else "no answers, since an oracle decides"
    )
    print(f"{grown['questions']} trees, {grown['trajectories']} trajectories, {earned}")
    roles = ", ".join(f"{count} {role}" for role, count in kept["roles"].items())
    print(f"kept {kept['samples']} actions of {kept['questions']} questions: {roles}")
    for setting, shown in metrics.get("visible", {}).items():
        print(f"what {setting}: {shown['words']} shows of gold passages: {_visible(shown)}")
    if len(metrics["sources"]) > 1:
        for source, gave in metrics["sources"].items():
            print(f"  {source}: {gave['questions']} questions, mean {gave['reward']}, {gave['actions']} actions")
    print(f"{out}/samples.parquet, episodes.jsonl, metrics.json, trees/")


def _visible(shown: Mapping[str, Any]) -> str:
    what = {"answer": "the answer", "bridge": "the title of the next one"}
    return ", ".join(
        f"{words} in {shown[name]:.0%} of those that hold it" for name, words in what.items() if shown[name] is not None
    )


def _show_sft(metrics: dict[str, Any], out: Path, reward: str) -> None:
    best = f"round {metrics['best_round']}" if "best_round" in metrics else f"epoch {metrics['best_epoch']}"
    print(
        f"{metrics['samples']} samples; {best} is best: "
        f"{reward} {metrics['dev_reward']:.2f} on {metrics['dev_questions']} dev questions"
    )
    print(f"{out}/policies/{metrics['policy']}, metrics.json, loss.csv, dev.csv")


def _show_rl(metrics: dict[str, Any], out: Path, reward: str) -> None:
    print(
        f"{metrics['iterations']} iterations; the policy after {metrics['best_iteration']} is best: "
        f"{reward} {metrics['dev_reward']:.2f} on {metrics['dev_questions']} dev questions, "
        f"{metrics['first']['dev_reward']:.2f} before"
    )
    if metrics["stopped"]:
        print(f"stopped early: {metrics['stopped']}")
    print(f"{out}/policies/{metrics['policy']}, metrics.json, history.csv, dev.csv")
