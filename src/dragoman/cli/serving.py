"""Commands that check the machine, ask one question, and serve."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dragoman.cli.command import ALLOW_MISMATCH, LLM, PARAMS_FILE, SET, Alias, app, command, parse_change
from dragoman.core import exits
from dragoman.core.errors import Fault, UserError
from dragoman.pipeline.doctor import examine, fault_table
from dragoman.pipeline.project import PARAMS, Project

AnyIndex = Annotated[str | None, typer.Option(help="An index folder or the URL of a retriever server.")]
Dataset = Annotated[str | None, typer.Option(help="Which dataset's index to search; train.dataset by default.")]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Insecure = Annotated[bool, typer.Option(help="Serve other machines without API keys.")]
Port = Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)]


@app.command()
def doctor(
    params: PARAMS_FILE = PARAMS,
    changes: SET = None,
    markdown: Annotated[bool, typer.Option(help="Print the table of faults and fixes for the documentation.")] = False,
) -> None:
    """Check versions, Java, model, index, disk, memory and servers, and name the fix for each fault.

    Example: dragoman doctor
    """
    if markdown:
        print(fault_table(), end="")
        return
    findings = examine(params, dict(map(parse_change, changes or [])))
    for finding in findings:
        print(f"{finding.mark} {finding.subject}: {finding.detail}")
        if finding.fix:
            print(f"     {finding.fix}")
    if any(f.mark == "FAIL" for f in findings):
        raise typer.Exit(exits.FAULT)


@command(*LLM, ALLOW_MISMATCH)
async def ask(
    project: Project,
    *,
    question: Annotated[str, typer.Argument()],
    system: Annotated[str | None, typer.Option(help="A system, or system@policy; train.system by default.")] = None,
    trace: Annotated[bool, typer.Option(help="Show the steps as they happen.")] = False,
    dataset: Dataset = None,
    index: AnyIndex = None,
) -> None:
    """Ask one question, and see the answer with the passages it rests on.

    Example: dragoman ask "Which currency is used in the country whose capital is Thimphu?" --system c3po --trace
    """
    from dragoman.evaluation.ask import ask_one, show_answer, show_step

    name = system or project.params.train.system
    project.check_systems(name)
    if not question.strip():
        raise UserError("the question is empty")
    async with project.runtime(index or str(project.index(dataset))) as runtime:
        observe = (lambda event: print(show_step(event), flush=True)) if trace else (lambda event: None)
        outcome = await ask_one(question, name, runtime, observe=observe)
    print(show_answer(outcome))
    if outcome.stop.is_fault:
        raise Fault(f"no answer ({outcome.stop}): {outcome.error}")


@app.command("serve-retriever")
def serve_retriever(
    index: Annotated[str | None, typer.Option(help="An index folder; that of train.dataset by default.")] = None,
    host: Host = "127.0.0.1",
    port: Port = 8100,
    keys: Annotated[str | None, typer.Option(help="A file of keys, as serve.keys; whoever searches needs one.")] = None,
    insecure: Insecure = False,
    params: PARAMS_FILE = PARAMS,
    changes: SET = None,
) -> None:
    """Serve an index over HTTP, in the request shapes of C-3PO (/search) and Search-R1 (/retrieve) too.

    Example: dragoman serve-retriever --index data/index/atlas --port 8100
    """
    import uvicorn

    from dragoman.core.keys import Keys
    from dragoman.core.listening import uvicorn_options
    from dragoman.retrieval.base import PerQuestion
    from dragoman.retrieval.following import FollowingRetriever
    from dragoman.retrieval.http.limits import BODY_S, MOST_AT_ONCE
    from dragoman.retrieval.http.server import create_app

    known = Keys(Path(keys)) if keys else None
    _check_host(host, port, known, insecure, "--keys")
    given: dict[str, Any] = {"changes": dict(map(parse_change, changes or [])), "origin": "--set"}
    project = Project.load(params, **given) if params != PARAMS or params.exists() else Project().changed(**given)
    retriever = FollowingRetriever(index or str(project.index()), project.params.index)
    if isinstance(retriever.inner, PerQuestion):
        raise UserError(
            f"{index}: what it finds depends on the question, which a server is not told; use the folder itself"
        )
    print(f"http://{host}:{port}/openapi.json describes the routes", file=sys.stderr)
    limits = uvicorn_options(head_s=BODY_S, connections=4 * MOST_AT_ONCE)
    uvicorn.run(create_app(retriever, keys=known), host=host, port=port, log_level="warning", **limits)


@command(
    Alias(
        "--models",
        "serve.models",
        "What to offer, separated by commas: c3po@champion,c3po@rl,standard.",
        several=True,
    ),
    Alias("--shadow", "serve.shadow", "A version that is asked the same questions in the background: v7."),
    Alias("--canary", "serve.canary", "A version that answers a share of them, until it does worse: v7."),
    Alias("--share", "serve.share", "The share of questions for either.", float),
    *LLM,
    ALLOW_MISMATCH,
)
async def serve(
    project: Project,
    *,
    dataset: Dataset = None,
    index: AnyIndex = None,
    champion: Annotated[
        str | None,
        typer.Option(help="Let `system@champion` follow a training stage's latest policy, not the registry."),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8200,
    insecure: Insecure = False,
    new_key: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only make an API key, and add its hash to serve.keys.")
    ] = None,
) -> None:
    """Answer questions over HTTP, for any OpenAI client; docs/serving.md describes the routes.

    Example: dragoman serve --models c3po@rl,standard --port 8200
    Example: dragoman serve --canary v7 --share 0.05
    """
    from dragoman import tracking
    from dragoman.core.keys import Keys, make_key
    from dragoman.serving.champion import RegistryChampion, StageChampion
    from dragoman.serving.run import run_server

    settings = project.params.serve
    keys_file = Path(settings.keys) if settings.keys else None
    if new_key is not None:
        if keys_file is None:
            raise UserError("serve.keys in params.yaml names no file to keep the key's hash in")
        print(make_key(keys_file, new_key))
        return
    project.check_systems(*(name.removesuffix("@champion") for name in settings.models))
    keys = Keys(keys_file) if keys_file else None
    _check_host(host, port, keys, insecure, "serve.keys")
    tracking.impatient()  # the champion is asked for again anyway
    registry = project.registry
    followed = StageChampion(champion, registry.results) if champion else RegistryChampion(registry)
    trained_on = project.dataset() / "train.jsonl"
    searched = index or str(project.index(dataset))
    await run_server(
        project.params, settings, searched, followed, keys, registry, trained_on=trained_on, host=host, port=port
    )


def _check_host(host: str, port: int, keys: object | None, insecure: bool, setting: str) -> None:
    """
    Raises:
        UserError: others could ask, and nothing keeps them out; or nothing can listen there.
    """
    from dragoman.core.listening import LOOPBACK, check_free

    if keys is None and not insecure and host not in LOOPBACK:
        raise UserError(
            f"--host {host}: everybody who reaches {host}:{port} could ask; let {setting} name a file of API keys, or say "
            "--insecure where something else keeps them out"
        )
    check_free(host, port)
