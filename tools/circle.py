"""The drill `circle`: what users ask and correct is what the next policy is trained on, and served. `tools/drill.py` runs it.

It walks the whole circle on the smoke profile, with real parts: endpoint, index, DVC, training, MLflow, a Prefect server with
its worker, and the gate with its own settings. Three things are chosen so that its verdict does not hang on luck:

- The LLM is a stand-in. It knows an answer where a gold passage is in its prompt, and a few by heart.
- The proxy is a random model of two layers, which learns within seconds.
- The first champion has weights of nought. All options are equal to it, so it takes the first: it never searches.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from dragoman.core import files
from dragoman.corpus import build_atlas
from tools.drill import BIN, HOST, LLM, ROOT, Drill, Endpoint, call, must, say, until

ASKED = 60
SILENT = 10
"""Questions of those to whose answers nobody says a word."""
BY_HEART = 5
"""The LLM knows every so-manieth answer without a passage."""
CHAMPION = "c3po@champion"
ATLAS = {"passages": 300, "train_questions": 30, "dev_questions": 12, "test_questions": 60}
"""As in conf/smoke.yaml, but for the questions by which the gate judges."""
CHANGES: dict[str, Any] = {
    "profile": "smoke",
    "corpus": {"atlas": {"source": "atlas", **ATLAS}},
    "model": {"source": "random"},
    "proxy": {"engine": "transformers", "model": "data/model"},
    "evaluated": ["standard"],
    "oracles": [],
    "policies": ["rl"],
    # an oracle acts by the gold passages, those that users have named as well
    "seeds": {"questions": 500, "max_share": 1, "exploration": {"oracle": True, "answers": False}},
    "sft": {"lr": 0.01, "epochs": 10, "dev_questions": 12},
    "rl": {"dev_questions": 12},
    "harvest": {"dataset": "atlas"},
    # to search costs more than not to, whatever it is worth
    "promote": {"dataset": "atlas", "max_cost_ratio": 1000},
}
C3PO = {
    "decide": "marks", "prompts": "brief", "roadmap": False, "queries": "names", "proxy_words": 40, "filter_words": 16,
    "k": 1, "bias": None,
}  # fmt: skip
"""As in the profile `cpu`, with one passage a search, and without biases: the first champion is to have learned nothing."""
MODELS = """
import shutil, sys
from pathlib import Path
from safetensors.torch import load_file, save_file
from dragoman.registry.policy import publish
from dragoman.registry.versions import Registry
sys.path.append(sys.argv[1])
from tiny import make_tiny
made = shutil.copytree(make_tiny(Path("random"), seed=0), Path("blank")) / "model.safetensors"
save_file({name: weights * 0 for name, weights in load_file(made).items()}, made, {"format": "pt"})
registry = Registry()
registry.promote(registry.register(publish(made.parent, Path("results/first"), {"stage": "first", "system": "c3po"})), None)
"""
"""Makes the base of the proxy, and the first champion."""


def circle(drill: Drill) -> str:
    """Users ask and correct; the night trains on that; what is served in the morning is what was trained."""
    step = stopwatch()
    make_project(drill)
    with reading(drill) as users:
        step(f"a project on the smoke profile, and {len(users)} users with a question each")
        endpoint = Endpoint(drill, models=[CHAMPION], deadline_s=60)
        first = policy(endpoint)
        step(f"the endpoint serves the champion v1 ({first})")

        answers = asked(endpoint, users, first)
        before = list(map(is_right, users, answers))
        for user, answer in list(zip(users, answers, strict=True))[SILENT:]:
            give_feedback(endpoint, user, answer)
        step(f"{len(users)} questions answered, {sum(before)} of them rightly; feedback on {ASKED - SILENT}")

        drill.command("harvest")
        harvested = json.loads((drill.folder / "results/harvest/served/metrics.json").read_text())
        labels = {"confirmed": sum(before[SILENT:]), "corrected": before[SILENT:].count(False)}
        must(harvested["questions"]["train"] == ASKED - SILENT and harvested["labels"] == labels, f"{harvested}")
        step(f"{ASKED - SILENT} questions harvested: {labels}, dropped {harvested['dropped']}")

        drill.params["harvests"] = ["served"]
        drill.configure(train={"dataset": "served"})
        flows = drill.flows()
        step("Prefect, MLflow and a worker are up")
        ended = flows.end(flows.begin("retrain/nightly"))
        must(ended["name"] == "Promoted", f"the run ended as {ended['name']}: {ended['message']}\n{worker_said(drill)}")
        decision = json.loads((drill.folder / "results/promote/decision.json").read_text())
        gain = decision["checks"][0]["found"]
        learnt = learnt_from(drill)
        must(learnt["served"] == ASKED - SILENT, f"the warm-up learnt from these questions, by type: {dict(learnt)}")
        step(
            f"the flow retrain learnt from {learnt.total()} questions, {learnt['served']} of them harvested; "
            f"its gate promoted {ended['message']}, gain {gain}"
        )

        until(lambda: policy(endpoint) == decision["policy"], "the endpoint serves the new champion", every=0.5)
        after = sum(map(is_right, users, asked(endpoint, users, decision["policy"])))
        must(after > sum(before), f"{sum(before)} answers were right before, and {after} are now")
        step(f"the endpoint, never restarted, serves {decision['challenger']} ({decision['policy']})")
    return (
        f"of {ASKED} questions {sum(before)} were answered rightly, and {after} by the policy trained on them; {gain}"
    )


def make_project(drill: Drill) -> None:
    """Make it a copy of this project with a corpus and an index, whose champion knows nothing."""
    shutil.rmtree(drill.folder / "data")
    shutil.rmtree(drill.folder / "conf")
    for name in ("conf", "src", ".dvc"):
        made_by_runs = shutil.ignore_patterns("cache", "tmp", "__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, drill.folder / name, ignore=made_by_runs)
    for name in ("dvc.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, drill.folder)
    own = {"llm": drill.params["llm"] | {"concurrency": 16}, "serve": drill.params["serve"]}
    drill.params = yaml.safe_load((ROOT / "params.yaml").read_text()) | CHANGES | own
    drill.configure(systems={"c3po": C3PO})
    drill.python(MODELS, str(ROOT / "tests" / "support"))
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    drill.ended(drill.start(BIN / "dvc", "repro", "model", "index@atlas", PATH=path, DVC_NO_ANALYTICS="1"))


class Reader(LLM):
    """A model that knows some answers by heart, and the others where a gold passage is before its eyes."""

    known: dict[str, tuple[str, list[str]]]
    """By question: the answer, and how each gold passage begins."""

    def says(self, messages: list[dict[str, str]]) -> str:
        prompt = "\n".join(message["content"] for message in messages)
        for number, (question, (answer, passages)) in enumerate(self.known.items()):
            if question in prompt and (number % BY_HEART == 0 or any(passage in prompt for passage in passages)):
                return answer
        return "unknown"


@contextmanager
def reading(drill: Drill) -> Iterator[list[dict[str, Any]]]:
    """Let the LLM answer. Gives the questions that users will ask: of the same corpus, and in no split of the project."""
    more = drill.folder / "users"
    build_atlas(more, seed=drill.params["seed"], passages=ATLAS["passages"], train=2 * ASKED, dev=12, test=60)
    own = {row["question"]: row for row in questions(drill.folder / "data/atlas")}
    users = [row for row in questions(more) if row["question"] not in own][:ASKED]
    texts = {row["id"]: row["text"][:40] for _, row in files.read(more / "corpus.jsonl")}
    Reader.known = {
        row["question"]: (row["answers"][0], [texts[passage] for passage in row["supporting_ids"]])
        for row in (*users, *own.values())
    }
    Reader.answered = drill.folder / "answered"
    with ThreadingHTTPServer((HOST, drill.llm_port), Reader) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield users
        finally:
            server.shutdown()


def questions(folder: Path) -> list[dict[str, Any]]:
    """Those of all splits."""
    return [row for split in ("train", "dev", "test") for _, row in files.read(folder / f"{split}.jsonl")]


def asked(endpoint: Endpoint, users: list[dict[str, Any]], version: str | None) -> list[dict[str, Any]]:
    """What the endpoint answers, by the policy of this version."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda user: endpoint.ask(user["question"], CHAMPION), users))
    by = Counter((answer["dragoman"]["policy"], bool(answer["dragoman"].get("degraded"))) for answer in answers)
    must(set(by) == {(version, False)}, f"not all answers are by {version}: {dict(by)}")
    return answers


def is_right(user: dict[str, Any], answer: dict[str, Any]) -> bool:
    return bool(answer["choices"][0]["message"]["content"] == user["answers"][0])


def give_feedback(endpoint: Endpoint, user: dict[str, Any], answer: dict[str, Any]) -> None:
    """Say whether the answer is right, if not what is, and which passages say so."""
    said = {"rating": "up"} if is_right(user, answer) else {"rating": "down", "answer": user["answers"][0]}
    call(f"{endpoint.url}/v1/feedback", {"id": answer["id"], "passages": user["supporting_ids"], **said})


def policy(endpoint: Endpoint) -> str | None:
    """Of the champion that is served now."""
    model: dict[str, Any] = call(f"{endpoint.url}/v1/models/{CHAMPION}")
    version: str | None = model["dragoman"]["policy"]
    return version


def learnt_from(drill: Drill) -> Counter[str]:
    """The questions that the warm-up learnt from, by their type."""
    episodes = drill.folder / "results/seeds/episodes.jsonl"
    return Counter(row["question"]["type"] for _, row in files.read(episodes))


def worker_said(drill: Drill) -> str:
    return (drill.folder / ".services/worker.log").read_text()[-3000:]


def stopwatch() -> Callable[[str], None]:
    """A function that says a step, with the seconds since the one before."""
    last = time.monotonic()

    def step(what: str) -> None:
        nonlocal last
        now = time.monotonic()
        say(f"        {now - last:4.0f} s  {what}")
        last = now

    return step
