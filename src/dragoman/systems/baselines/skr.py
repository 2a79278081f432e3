"""SKR-KNN (Wang et al. 2023, arXiv 2310.05002): search only where it has helped with similar training questions.

The file that `training` names is an evaluation of `direct` and `standard` on training questions. A question is labelled
better (+1) where only the answer with passages was right, worse (-1) where only the one without, and left out otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dragoman.core import files
from dragoman.core.errors import UserError
from dragoman.core.types import Question
from dragoman.retrieval.methods.dense import BUNDLED_ENCODER, SCORE_DIGITS, load_encoder
from dragoman.systems.base import Context, Outcome
from dragoman.systems.baselines import Taught, aside

if TYPE_CHECKING:
    import numpy as np

SCORE = "cover_em"


@dataclass(frozen=True)
class SKR(Taught):
    neighbours: int = 5
    """Training questions that a question is compared with."""
    encoder: str = BUNDLED_ENCODER
    """What embeds questions: as `index.encoder` of the method `dense`."""

    made_by: ClassVar[str] = (
        "run `dragoman evaluate --systems direct,standard --set evaluate.split=train --limit 500 --out results/skr` "
        "and set systems.skr.training to results/skr/predictions.jsonl"
    )

    async def run(self, question: Question, ctx: Context) -> Outcome:
        (vector,) = await aside(embed, self.encoder, (question.question,))
        search = needs_search(self._nearest(vector), list(self.learnt.values()))
        found = await ctx.retrieve(question.question, k=self.k) if search else []
        return await self.answer(ctx, question, found)

    def prepared(self) -> Self:
        """See `Taught.prepared`. The training questions are embedded here, at some 10 ms each."""
        ready = super().prepared()
        _ = ready._vectors
        return ready

    def _nearest(self, vector: np.ndarray) -> list[int]:
        """The labels of the training questions that are nearest to one, by its vector."""
        import numpy as np

        cosines = np.round(self._vectors @ vector, SCORE_DIGITS)
        labels = list(self.learnt.values())
        return [labels[i] for i in np.argsort(-cosines, kind="stable")[: self.neighbours]]

    @cached_property
    def _vectors(self) -> np.ndarray:
        """Of the training questions, [questions, dimensions], each of length 1."""
        return embed(self.encoder, tuple(self.learnt))

    @cached_property
    def learnt(self) -> dict[str, int]:
        """The label of each training question: 1 where retrieval helped, -1 where it did harm."""
        rows = [row for _, row in files.read(Path(self.training))]
        labels = label(rows)
        if not labels:
            raise UserError(
                f"{self.training}: no question there has one right answer of {' and '.join(COMPARED)}; "
                f"take more questions: {self.made_by}"
            )
        return labels


COMPARED = ("direct", "standard")


def label(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """+1 for each question that `standard` alone answers, -1 for each that `direct` alone does, in the order of the rows."""
    scores: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.get("system") in COMPARED and row["scores"].get(SCORE) is not None:
            scores.setdefault(row["question"], {})[row["system"]] = row["scores"][SCORE]
    gains = {q: of["standard"] - of["direct"] for q, of in scores.items() if len(of) == len(COMPARED)}
    return {question: 1 if gain > 0 else -1 for question, gain in gains.items() if gain}


def needs_search(nearest: Sequence[int], labels: Sequence[int]) -> bool:
    """Whether to search, by the labels of the nearest questions and of all.

    A question is taken to be of the kind that most are of only where its neighbours are so at least as clearly as the average.
    """
    over_all, near = sum(labels), sum(nearest)
    threshold = int(len(nearest) * over_all / len(labels))
    if over_all < 0:
        return not (near < 0 and near <= threshold)
    return near > 0 and near >= threshold


@lru_cache(maxsize=4)  # a system is prepared when its settings are checked, and when it is opened
def embed(encoder: str, questions: tuple[str, ...]) -> np.ndarray:
    """Unit vectors, [questions, dimensions]. The encoder runs in this process, at some 10 ms a question."""
    import numpy as np

    vectors = loaded_encoder(encoder).encode_query(list(questions), normalize_embeddings=True, show_progress_bar=False)
    return np.asarray(vectors, dtype=np.float32)


@cache
def loaded_encoder(name: str) -> Any:
    """The encoder of that name, loaded once for the whole process."""
    return load_encoder(name)


SYSTEM = SKR
