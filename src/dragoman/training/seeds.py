"""Seed trajectories: rejection sampling from trees (C-3PO section 5.2; Yuan et al. 2023).

Trees of a policy that has not been trained are mostly wrong. What led to a right answer, and did better there than its
siblings, is what the warm-up learns.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.engines.base import Request
from dragoman.engines.local import Vocabulary
from dragoman.rollout.credit import credit, shares
from dragoman.rollout.record import Episode, Marked, Node, Trajectory
from dragoman.rollout.samples import Marks, Sample, sample_of, samples
from dragoman.systems.base import Role
from dragoman.systems.grammar import Action
from dragoman.systems.options import listed, scoring
from dragoman.systems.prompts import Messages
from dragoman.training.selection import CONTRAST
from dragoman.training.settings import SeedsParams


def solutions(episode: Episode, reward: str, settings: SeedsParams) -> list[Trajectory]:
    """The trajectories of an episode that are kept: those that earned the reward, at most `solutions` of them.

    They are taken in turn from each strategy (kind of first decision), and within it those first whose actions have the
    highest mean credit, then the shortest.
    """
    credits = credit(episode, reward)
    nodes = {n.id: n for n in episode.nodes}

    def rank(trajectory: Trajectory) -> tuple[float, int]:
        values = [credits[i] or 0.0 for i in trajectory.nodes]
        return -sum(values) / len(values), len(values)

    by_strategy: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in episode.trajectories:
        earned = trajectory.rewards.get(reward)
        if trajectory.nodes and earned is not None and earned >= settings.min_reward - CONTRAST:
            by_strategy[nodes[trajectory.nodes[0]].kind].append(trajectory)
    queues = [sorted(by_strategy[name], key=rank) for name in sorted(by_strategy)]
    kept: list[Trajectory] = []
    while len(kept) < settings.solutions and any(queues):
        for queue in queues:
            if queue and len(kept) < settings.solutions:
                kept.append(queue.pop(0))
    return kept


def select(episode: Episode, reward: str, settings: SeedsParams) -> list[Sample]:
    """The actions of the kept trajectories that are worth imitating.

    An action is left out when its credit is below `min_credit`, or does not exceed its siblings' mean, by their shares, by
    `min_advantage`: where every choice earns the same there is nothing to learn. Of the first decisions only the cheapest
    that led to a solution is kept, or with `first: all` each that did. Credit would not do for them: what follows a
    search is still untrained, and a policy that compares means learns not to search before it can select.
    """
    found = {sample.node: sample for sample in samples(episode, reward, need_ids=False)}
    kept = [i for trajectory in solutions(episode, reward, settings) for i in trajectory.nodes]
    siblings: dict[str, list[Sample]] = defaultdict(list)
    for sample in found.values():
        siblings[sample.group].append(sample)
    chosen: dict[str, Sample] = {}
    for sample in (found[i] for i in kept if i in found):
        group = siblings[sample.group]
        if _is_strategy(sample):
            if settings.first == "cheapest":
                solved = [s for s in group if s.node in kept]
                if sample != min(solved, key=lambda s: (_cost(episode, s), -s.credit)):
                    continue
        elif sample.credit < settings.min_credit:
            continue
        elif settings.min_advantage and not (sample.forced and len(group) == 1):  # what an oracle says has no siblings
            mean = sum(share * s.credit for share, s in zip(shares(group), group, strict=True))
            if sample.credit - mean < settings.min_advantage:
                continue
        chosen[sample.node] = sample
    return list(chosen.values())


def _is_strategy(sample: Sample) -> bool:
    """A first decision of which every kind was tried."""
    return sample.forced and sample.depth == 1


def _cost(episode: Episode, first: Sample) -> int:
    """The decisions of the longest trajectory that begins with it."""
    return max(len(t.nodes) for t in episode.trajectories if first.node in t.nodes)


def balance(chosen: Sequence[Sample], max_share: float, seed: int) -> list[Sample]:
    """Leave out as few samples as will do, at random, so that no strategy and no role has more than its share.

    First no kind of first decision has more than `max_share` of those decisions, then no role more than that of all.
    Shares that cannot be had (below one over their number) end in equal ones.

    A labelled state counts as the kind that is right there. Where several kinds are, or where options are selected, it counts as
    none: the kind of a selection is of what a noisy oracle took.
    """
    rng = random.Random(seed)
    counted = [_is_strategy(s) and s.kind != "" and not (s.marks and s.marks.right and s.marks.many) for s in chosen]
    first = _capped([s.kind if counts else None for s, counts in zip(chosen, counted, strict=True)], max_share, rng)
    kept = [s for s, keep in zip(chosen, first, strict=True) if keep]
    return [s for s, keep in zip(kept, _capped([s.role for s in kept], max_share, rng), strict=True) if keep]


def _capped(labels: Sequence[str | None], max_share: float, rng: random.Random) -> list[bool]:
    """Which to keep so that no label has more than `max_share` of what is left; None is not counted, and kept."""
    counts = Counter(label for label in labels if label is not None)
    cap = max(counts.values(), default=0)
    while cap > min(counts.values(), default=0) and cap > max_share * sum(min(n, cap) for n in counts.values()):
        cap -= 1
    keep = [True] * len(labels)
    for label, count in sorted(counts.items()):
        own = [i for i, other in enumerate(labels) if other == label]
        for i in rng.sample(own, max(0, count - cap)):
            keep[i] = False
    return keep


def for_proxy(
    chosen: Sequence[Sample], episodes: Sequence[Episode], shown: Mapping[str, int], vocabulary: Vocabulary
) -> list[Sample]:
    """The same actions as the proxy would take them: without the sampler's examples, in the proxy's own tokens.

    Only needed for a teacher, an oracle or in-context examples; else samples keep the engine's token ids and logprobs.

    Args:
        shown: how many examples the sampler was shown, by role.
    """
    nodes = {(e.key, n.id): n for e in episodes for n in e.nodes}
    end = min(vocabulary.eos_ids)
    rewritten = []
    for sample in chosen:
        node = nodes[sample.episode, sample.node]
        if node.marked is not None and sample.marks is not None:
            ids, positions = _laid_out(node, node.marked, vocabulary)
            marks = dataclasses.replace(sample.marks, positions=positions)
            rewritten.append(dataclasses.replace(sample, prompt_ids=ids, marks=marks))
            continue
        prompt = tuple(without_shots([(role, text) for role, text in node.prompt], shown.get(node.role, 0)))
        prompt_ids = vocabulary.encode(Request(prompt=prompt, max_tokens=1))
        completion_ids = (*vocabulary.tokenize(node.text), end)
        rewritten.append(dataclasses.replace(sample, prompt_ids=prompt_ids, completion_ids=completion_ids, logprobs=()))
    return rewritten


def _laid_out(node: Node, marked: Marked, vocabulary: Vocabulary) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The token ids of a state at marks as the proxy reads it, and the places of its marks in them."""
    options = tuple(marked.options)
    prompt = node.prompt[0][1].removesuffix(listed(options))
    return vocabulary.encode_options(Request(prompt=(("user", prompt),), max_tokens=1, options=options))


def labelled(episodes: Sequence[Episode], vocabulary: Vocabulary, *, by_proxy: bool = True) -> list[Sample]:
    """The states at marks in which an oracle has said what is right, as samples whose action is right.

    Args:
        vocabulary: of the proxy, which lays out prompts that no engine of its own has read.
        by_proxy: those that an engine has read are in the proxy's token ids, and not in a teacher's.
    """
    found = []
    for episode in episodes:
        for node in episode.nodes:
            if node.marked is None or not node.marked.right or (len(node.marked.options) == 1 and not node.marked.many):
                continue
            ids, positions = tuple(node.prompt_ids), tuple(node.marked.positions)
            if not (ids and by_proxy):
                ids, positions = _laid_out(node, node.marked, vocabulary)
            right = tuple(map(tuple, node.marked.right))
            marks = Marks(positions, node.marked.many, right[0], right)
            # the right action, which need not be the one that was taken: its probability is not known
            kinds = {node.marked.kinds[place] for (place,) in right} if node.marked.kinds else {node.kind}
            kind = kinds.pop() if len(kinds) == 1 else ""
            sample = dataclasses.replace(sample_of(episode, node, 1.0), kind=kind, prompt_ids=ids, marks=marks)
            found.append(dataclasses.replace(sample, logprobs=(), probability=None, inclusion=1.0))
    return found


def taught(
    role: Role, state: dict[str, Any], action: Action, vocabulary: Vocabulary, *, question: str, node: str
) -> Sample:
    """What is right for a role in a state, as a sample that no rollout has drawn.

    Args:
        state: as the role's view takes it.
        vocabulary: of the proxy.
        question: id of the question that the state is of.
        node: names the state among those of the question.
    """
    grammar, options = role.grammar(**state), role.options(**state) if role.options else None
    marks, completion = None, tuple[int, ...]()
    if options is None:
        ids = vocabulary.encode(Request(prompt=role.messages(state), max_tokens=1))
        completion = (*vocabulary.tokenize(grammar.render(action)), min(vocabulary.eos_ids))
    else:
        ids, positions = vocabulary.encode_options(scoring(options))
        right = options.taken(action)
        marks = Marks(positions, options.many, right, (right,))
    return Sample(
        episode=question,
        question=question,
        node=f"{question} {node}",
        group=f"{question}/{node}",
        role=role.name,
        kind=type(action).__name__,
        depth=1,
        forced=True,
        prompt_ids=tuple(ids),
        completion_ids=completion,
        logprobs=(),
        temperature=0.0,
        grammar=grammar.constraint(),
        credit=1.0,
        marks=marks,
    )


def without_shots(messages: Sequence[tuple[str, str]], shots: int) -> Messages:
    """Messages without the first `shots` pairs of user and assistant after the system's, or as many as there are."""
    start = 1 if messages and messages[0][0] == "system" else 0
    pairs = min(shots, sum(role == "assistant" for role, _ in messages))
    return (*messages[:start], *messages[start + 2 * pairs :])


def counts(chosen: Sequence[Sample]) -> dict[str, Any]:
    """How many samples there are of each role and kind."""
    return {
        "samples": len(chosen),
        "questions": len({s.question for s in chosen}),
        "roles": dict(sorted(Counter(s.role for s in chosen).items())),
        "kinds": dict(sorted(Counter(f"{s.role} {s.kind}" for s in chosen).items())),
    }
