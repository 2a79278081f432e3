"""What a question must pass: each filter with a draft on either side of its line."""

from dataclasses import replace

import pytest
from fakes import ListRetriever, ScriptedEngine
from lands import BHUTAN, NEPAL, THIMPHU, THREE

from dragoman.core.errors import RetrieverFault
from dragoman.core.types import Passage
from dragoman.synthesis.brief import Draft
from dragoman.synthesis.filters import Duplicates, answerable, grounded, language, leakage, length, retrievable
from dragoman.synthesis.reader import Reader

DRAFT = Draft("What is the capital of Bhutan?", ("Thimphu",), "Thimphu", ("Thimphu",), ("bt",))
GREEK = Passage("gr", "Αθήνα", "Η Αθήνα είναι η πρωτεύουσα της Ελλάδας.")


@pytest.mark.parametrize(("words", "said"), [(1, "1 words"), (2, ""), (7, ""), (8, "8 words"), (0, "0 words")])
async def test_length_counts_both_ends_in(words, said):
    assert await length(2, 7)(replace(DRAFT, question=" ".join("word" for _ in range(words))), [BHUTAN]) == said


@pytest.mark.parametrize(("question", "said"), [("北京在哪里？", ""), ("谁？", "1 words")])
async def test_length_takes_two_characters_of_a_script_without_blanks_for_a_word(question, said):
    assert await length(2, 7)(replace(DRAFT, question=question), [BHUTAN]) == said


@pytest.mark.parametrize(
    ("question", "passages", "said"),
    [
        ("What is the capital of Bhutan?", [BHUTAN], ""),
        ("Ποια είναι η πρωτεύουσα;", [GREEK], ""),
        ("Ποια είναι η πρωτεύουσα;", [BHUTAN], "another script"),
        ("What is the capital?", [GREEK], "another script"),
        ("What is the capital?", [GREEK, BHUTAN], ""),
        ("abcd Ж", [BHUTAN], ""),  # a fifth of its letters
        ("abc Ж", [BHUTAN], "another script"),  # a fourth
        ("1 + 2 = ?", [BHUTAN], ""),
        ("Où est-ce?", [BHUTAN], ""),  # accents are no script
        ("不丹的首都是什么?", [BHUTAN], "another script"),
    ],
)
async def test_language(question, passages, said):
    assert await language(replace(DRAFT, question=question), passages) == said


@pytest.mark.parametrize(
    ("question", "answers", "said"),
    [
        ("What is the capital of Bhutan?", ("Thimphu",), ""),
        ("Is THIMPHU the capital of Bhutan?", ("Thimphu",), "it says 'Thimphu'"),
        ("Is Thímphu the capital?", ("Thimphu",), "it says 'Thimphu'"),
        ("Of what is Thimphubad the capital?", ("Thimphu",), ""),  # within a word
        ("What pays the rupee of Nepal?", ("Nepalese rupee", "rupee of Nepal"), "it says 'rupee of Nepal'"),
        ("What is the rupee in Nepal?", ("Nepalese rupee", "rupee of Nepal"), ""),  # not side by side
        ("What is the domain of Iceland?", (".is",), ""),
        ("Whose domain is .is?", (".is",), "it says '.is'"),
        ("What does he call helium?", ("He",), ""),
        ("Is it C or C++?", ("C++",), "it says 'C++'"),
        ("Which language followed C?", ("C++",), ""),
        ("Is it yes or no?", ("no",), ""),
        ("Is it yes or no?", ("Yes",), ""),
    ],
)
async def test_leakage(question, answers, said):
    assert await leakage(replace(DRAFT, question=question, answers=answers), [BHUTAN]) == said


@pytest.mark.parametrize(
    ("answers", "supporting", "fits"),
    [
        (("Thimphu",), ("bt",), True),
        (("thimphu!",), ("bt",), True),
        (("Kathmandu",), ("bt",), False),
        (("Kathmandu",), ("bt", "np"), True),
        (("Kathmandu", "Thimphu"), ("bt",), True),  # one of its names is enough
        (("Thim",), ("bt",), False),
        (("Bhutan Bhutan",), ("bt",), True),  # the title, and the text behind it
        (("yes",), ("bt",), True),
        (("No",), (), True),
        (("Thimphu",), (), False),
    ],
)
async def test_grounded(answers, supporting, fits):
    said = await grounded(replace(DRAFT, answers=answers, supporting_ids=supporting), THREE)
    assert said == ("" if fits else "its passages do not say it")


@pytest.mark.parametrize(
    ("answer", "text", "fits"),
    [
        (".is", "Its domain is .is.", True),
        (".is", "It is an island.", False),
        ("He", "Its symbol is He.", True),
        ("He", "There he found it.", False),
        ("+354", "It has 354,000 inhabitants.", False),
    ],
)
async def test_a_short_or_marked_answer_is_grounded_only_as_it_is_written(answer, text, fits):
    passage, named = Passage("x", "Erehwon", text), {"supporting_ids": ("x",)}
    said = await grounded(replace(DRAFT, answers=(answer,), **named), [passage])
    rests = await grounded(replace(DRAFT, answers=("yes",), evidence=(answer,), **named), [passage])
    assert (not said, not rests) == (fits, fits)


async def test_every_part_of_an_answer_must_stand_there_and_none_may_leak():
    draft = replace(DRAFT, answers=("Thimphu and Kathmandu",), parts=(("Thimphu",), ("Kathmandu", "Katmandu")))
    assert await grounded(replace(draft, supporting_ids=("bt", "np")), THREE) == ""
    assert await grounded(replace(draft, supporting_ids=("bt",)), THREE) == "its passages do not say it"
    assert await leakage(replace(draft, question="Is Katmandu one of two?"), THREE) == "it says 'Katmandu'"


@pytest.mark.parametrize(
    ("evidence", "supporting", "said"),
    [
        (("Thimphu", "Bhutan"), ("bt",), ""),
        (("Thimphu", "Kathmandu"), ("bt",), "its passages do not say 'Kathmandu'"),
        (("Thimphu", "Kathmandu"), ("bt", "np"), ""),
        (("Thimphu",), (), "its passages do not say 'Thimphu'"),
        ((), ("bt",), ""),
    ],
)
@pytest.mark.parametrize("answer", ["yes", "No"])
async def test_what_a_yes_or_a_no_rests_on_is_said(answer, evidence, supporting, said):
    draft = replace(DRAFT, answers=(answer,), supporting_ids=supporting, evidence=evidence)
    assert await grounded(draft, THREE) == said


async def test_retrievable_among_the_first_k():
    retriever = ListRetriever(THREE)
    draft = replace(DRAFT, question="kingdom in Asia")  # finds Bhutan first, then Thimphu
    for supporting, k, said in [
        (("bt",), 1, ""),
        (("th",), 1, "not among the first 1"),
        (("th",), 2, ""),
        (("np", "th"), 2, ""),  # one of several is enough
        (("np",), 2, "not among the first 2"),
    ]:
        assert await retrievable(retriever, k)(replace(draft, supporting_ids=supporting), THREE) == said
    assert set(retriever.queries) == {"kingdom in Asia"}


async def test_a_retriever_s_fault_is_not_taken_for_a_verdict():
    class Broken(ListRetriever):
        async def search(self, queries, k, page=0):
            raise RetrieverFault("down")

    with pytest.raises(RetrieverFault):
        await retrievable(Broken(THREE), 1)(DRAFT, THREE)


def reads(knows):
    """An LLM that answers Thimphu when a passage says so, and from memory if it knows."""
    return ScriptedEngine(
        lambda prompt, rng: "Thimphu" if "Thimphu" in prompt or (knows and "documents" not in prompt) else "no idea"
    )


@pytest.mark.parametrize(
    ("knows", "supporting", "said"),
    [
        (False, ("bt",), ""),
        (False, ("np",), "not answered with its passages"),
        (True, ("bt",), "answered from memory"),
        (True, ("np",), "not answered with its passages"),
        (False, ("np", "bt"), ""),
    ],
)
async def test_answerable_with_its_passages_and_not_without(knows, supporting, said):
    engine = reads(knows)
    check = answerable(Reader(engine))
    assert await check(replace(DRAFT, supporting_ids=supporting), THREE) == said
    prompts = [request.messages[-1]["content"] for request in engine.requests]
    assert len(prompts) == (1 if said.startswith("not") else 2)  # the second is not paid for in vain
    read = prompts[0]
    for passage in (BHUTAN, NEPAL, THIMPHU):
        assert (passage.text in read) == (passage.id in supporting)


async def test_half_of_several_answers_is_enough():
    def share(of_documents, of_memory):
        """So many of four draws are right."""
        left = {"documents": of_documents, "memory": of_memory}

        def script(prompt, rng):
            where = "documents" if "documents" in prompt else "memory"
            left[where] -= 1
            return "Thimphu" if left[where] >= 0 else "no idea"

        return answerable(Reader(ScriptedEngine(script), draws=4))

    assert await share(1, 0)(DRAFT, THREE) == "not answered with its passages"
    assert await share(2, 0)(DRAFT, THREE) == ""
    assert await share(2, 1)(DRAFT, THREE) == ""
    assert await share(4, 2)(DRAFT, THREE) == "answered from memory"


LONG = " ".join(f"w{i}" for i in range(60))


@pytest.mark.parametrize(
    ("question", "same"),
    [
        (LONG, True),
        (LONG.upper() + "?!", True),  # neither case nor marks count
        (f"{LONG} w60", True),  # 58 of 59 triples
        (" ".join(reversed(LONG.split())), False),  # the same words
        (" ".join(LONG.split()[:30]), False),  # half of it
        ("What is the capital of Bhutan?", False),
        ("", False),
    ],
)
def test_near_duplicates(question, same):
    kept = Duplicates(0.8)
    kept.keep("train-0001", LONG)
    assert kept.of(question) == ("train-0001" if same else "")


def test_a_question_in_a_script_without_blanks_is_a_near_duplicate_by_its_letters():
    kept = Duplicates(0.6)
    kept.keep("a", "中华人民共和国的首都在哪一座城市里面？")
    assert kept.of("请问中华人民共和国的首都在哪一座城市里面？") == "a" and kept.of("法国最长的河流叫什么名字？") == ""


def test_duplicates_of_what_was_kept_alone():
    kept = Duplicates(0.8)
    assert kept.of(LONG) == ""
    kept.keep("b", LONG)
    kept.keep("a", f"{LONG} w60")
    assert kept.of(LONG) == "a"  # the first of their names, so that it does not hang on the order of a set
    kept.keep("c", "two words")
    assert kept.of("Two words!") == "c" and kept.of("two") == kept.of("two other words") == ""


def test_a_lower_threshold_finds_more():
    half = " ".join([*LONG.split()[:45], *(f"v{i}" for i in range(15))])  # 43 of 73 triples: 0.59
    for threshold, found in ((0.3, "x"), (0.9, "")):
        kept = Duplicates(threshold)
        kept.keep("x", LONG)
        assert kept.of(half) == found
