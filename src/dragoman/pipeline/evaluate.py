"""Stage `evaluate`: systems on the same questions, with the same frozen LLM and the same index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from typing_extensions import Doc

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.evaluation.evaluate import REWARD, Evaluation, ask, report
from dragoman.evaluation.sequential import until_clear
from dragoman.evaluation.shards import finish, merged
from dragoman.pipeline.index import INDEXED, named_after
from dragoman.pipeline.inputs import ShardInputOptions, check_gold_in_index, open_inputs
from dragoman.pipeline.project import Project, check_results
from dragoman.pipeline.questions import QuestionSet
from dragoman.rollout.shards import Shard
from dragoman.systems.system_name import SystemName


@dataclass(frozen=True, kw_only=True)
class Options(ShardInputOptions):
    systems: Annotated[tuple[str, ...], Doc("Systems, separated by commas: direct,standard,c3po.")] = ()
    limit: Annotated[int | None, Ge(1), Doc("Only the first so many questions; evaluate.limit by default.")] = None
    until_clear: Annotated[
        tuple[str, ...],
        Doc("Two of the systems: ask in batches until the interval of their difference is clear of zero."),
    ] = ()
    clear_by: Annotated[str, Doc("The score of that difference: a usual one, or one of evaluate.scores.")] = REWARD
    out: Annotated[
        Path | None,
        Doc(
            "Where the results go; results/evaluate/DATASET or /CORPUS by default, with -FILE behind it for --questions."
        ),
    ] = None

    def searched(self, project: Project) -> str:
        """What the results call the corpus, or the dataset."""
        if self.corpus is None:
            return self.dataset or project.params.train.dataset
        return named_after(self.corpus)

    def name(self, project: Project) -> str:
        """What the results call the questions about it."""
        name = self.searched(project)
        return f"{name}-{self.questions.stem}" if self.questions else name

    def folder(self, project: Project) -> Path:
        return self.out or project.results("evaluate") / self.name(project)

    def part(self) -> Shard | None:
        """See `ShardOptions.part`.

        Raises:
            UserError: so too where all questions are looked at together.
        """
        if self.until_clear and (self.shard or self.merge or self.processes > 1):
            raise UserError(
                "--until-clear looks at all questions at once: leave out --shard, --merge and --processes, or --until-clear"
            )
        return super().part()


async def run(project: Project, options: Options) -> dict[str, Any]:
    """Evaluate systems; see `evaluation.evaluate`. A file of questions is asked whole, unless there is a limit.

    Raises:
        UserError: no such system or policy, not two different ones to compare, a file that cannot be read, or a shard that
            is not finished. Or the index lacks an oracle's gold passages, or the folder is an index's, or another process
            writes into it.
    """
    params, settings, out = project.params, project.params.evaluate, options.folder(project)
    dataset = "" if options.questions else options.dataset or params.train.dataset
    systems = options.systems or options.until_clear or params.compared(dataset)
    project.check_systems(*systems)
    if options.clear_by != REWARD and not options.until_clear:
        raise UserError(
            f"--clear-by {options.clear_by}: of the difference that --until-clear names; give both, or neither"
        )
    if options.until_clear and (len({*options.until_clear}) != 2 or not {*options.until_clear} <= {*systems}):
        raise UserError(f"--until-clear {','.join(options.until_clear)}: name two of the systems: {', '.join(systems)}")
    part = options.part()
    limit = options.limit or (None if options.questions else settings.limit)
    if not options.out and options.questions and out.name.endswith(INDEXED):
        raise UserError(
            f"--questions {options.questions}: {out} is where the index of a corpus would be; name another folder with --out"
        )
    place = options.place(out)
    beside = options.out or project.results("evaluate") / options.searched(project)  # one index, whatever is asked
    check_results(out)
    with files.only_writer(place):
        inputs = open_inputs(project, options, settings.split, beside, sources=(settings.questions,), limit=limit)
        _check_oracles(systems, inputs.asked)
        questions = inputs.asked.questions
        evaluation = Evaluation(
            dataset=options.name(project),
            settings=settings,
            seed=params.seed,
            out=place,
            track=None if part else project.tracking,
        )
        if options.merge is not None:
            opened = {name: project.system(name) for name in systems}
            answers = merged(options.merge, opened, questions, evaluation)
        else:
            if part:
                questions = part.part(questions)
                part.begin(out)
            async with project.runtime(inputs.index, inputs.passages, cache=settings.cache) as runtime:
                if options.index and any(SystemName.parse(name).needs_gold for name in systems):
                    await check_gold_in_index(runtime.retriever, inputs.asked, inputs.passages or ())
                if options.until_clear:
                    pair = options.until_clear
                    return await until_clear(pair, systems, questions, runtime, evaluation, score=options.clear_by)
                answers = await ask(systems, questions, runtime, evaluation)
        metrics = report(answers, evaluation)
        if part:
            finish(part, out, answers, settings)
        return metrics


def _check_oracles(systems: Sequence[str], asked: QuestionSet) -> None:
    """
    Raises:
        UserError: an oracle would meet a question whose gold passages are not known, after other systems were paid for.
    """
    oracles = [name for name in systems if SystemName.parse(name).needs_gold]
    unknown = [question.id for question in asked.questions if not question.supporting_ids]
    if oracles and unknown:
        raise UserError(
            f"{', '.join(map(str, asked.files))}: {len(unknown)} of {len(asked.questions)} questions have no supporting_ids, such as "
            f"{unknown[0]}, and {oracles[0]} needs them: leave it out of --systems, or make questions by `dragoman synthesize`"
        )
