import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dragoman.core.errors import UserError
from dragoman.core.types import Passage
from dragoman.corpus.chunking import chunk, with_wholes

SENTENCES = [
    "The ngultrum is the currency of Bhutan, and Thimphu is its capital.",
    "Kraków, Łódź and Gdańsk are cities in Poland; São Tomé is farther away.",
    "不丹的首都是廷布。 Москва — столица России. 🏔️ mountains everywhere",
]


@pytest.fixture(scope="module")
def tokenizer():
    """A byte-level BPE tokenizer: its tokens cut words, and even characters, in the middle."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    )
    return PreTrainedTokenizerFast(tokenizer_object=bpe)


def passage(text: str) -> Passage:
    return Passage("p", "Title", text)


def spans(chunks: list[Passage], text: str) -> list[tuple[int, int]]:
    """Where each chunk lies: as late as it can begin without leaving out a letter behind the one before it."""
    found: list[tuple[int, int]] = []
    for c in chunks:
        end = found[-1][1] if found else 0
        latest = end + len(text[end:]) - len(text[end:].lstrip())
        start = text.rfind(c.text, 0, latest + len(c.text))
        assert start >= 0, "letters were left out"
        found.append((start, start + len(c.text)))
    return found


gap = st.sampled_from([" ", "  ", "\n", "\t", "\u3000"])


def texts_of(last: str):
    """Texts of characters up to this one."""
    word = st.text(st.characters(categories=("L", "N", "P"), max_codepoint=ord(last)), min_size=1, max_size=8)
    return st.lists(st.tuples(word, gap), min_size=1, max_size=60).map(lambda parts: "".join(w + g for w, g in parts))


SPACED = texts_of("\u0dff")  # the scripts before Thai


@given(SPACED, st.integers(1, 12), st.integers(0, 11))
def test_words(text, size, overlap):
    overlap = min(overlap, size - 1)
    words = text.split()
    chunks = chunk([passage(text)], by="words", size=size, overlap=overlap)
    if len(words) <= size:
        assert chunks == [passage(text)]
        return
    cut = [c.text.split() for c in chunks]
    assert [c.id for c in chunks] == [f"p#{n}" for n in range(len(chunks))]
    assert all(c.title == "Title" and c.text in text for c in chunks)
    assert all(len(c) <= size for c in cut)
    assert all(a[len(a) - overlap :] == b[:overlap] for a, b in itertools.pairwise(cut))
    assert cut[0] + [w for c in cut[1:] for w in c[overlap:]] == words  # all words, in order, none left out
    assert all(len(c) > overlap for c in cut)  # no chunk says only what the one before it said


@given(
    st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=6).map(" ".join) | texts_of("\U0010ffff"),
    st.integers(8, 40),
    st.integers(0, 7),
)
def test_tokens(tokenizer, text, size, overlap):
    chunks = chunk([passage(text)], by="tokens", size=size, overlap=overlap, tokenizer=tokenizer)
    if len(tokenizer(text)["input_ids"]) <= size:
        assert chunks == [passage(text)]
        return
    where = spans(chunks, text)
    assert all(len(tokenizer(c.text)["input_ids"]) <= size for c in chunks)
    assert where[-1][1] >= len(text.rstrip())


def test_token_overlap_is_that_of_the_tokens(tokenizer):
    text = " ".join(f"{n} {SENTENCES[0]}" for n in range(8))
    offsets = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    where = spans(chunk([passage(text)], by="tokens", size=30, overlap=10, tokenizer=tokenizer), text)
    assert len(where) > 3
    for (_, end), (start, _) in itertools.pairwise(where):
        assert sum(start <= a and b <= end for a, b in offsets) == 10


def test_defaults(tokenizer):
    long = passage("word " * 1000)
    assert [len(c.text.split()) for c in chunk([long], by="words")] == [100] * 10
    first = chunk([passage(" ".join(SENTENCES * 40))], by="tokens", tokenizer=tokenizer)[0]
    assert 505 <= len(tokenizer(first.text)["input_ids"]) <= 512


def test_short_passages_keep_text_and_id():
    short = [Passage("a", "A", "  two words \n"), Passage("b", "B", "one")]
    assert chunk(short, by="words", size=2, overlap=1) == short


@pytest.mark.parametrize("text", ["不丹的首都是廷布" * 5, "ภูฏานเป็นประเทศ" * 5])
def test_a_text_of_a_script_without_spaces_is_cut_and_nothing_is_lost(text):
    chunks = chunk([passage(text)], by="words", size=4)
    assert "".join(c.text for c in chunks) == text
    assert len(chunks) > 4 and max(len(c.text) for c in chunks) <= 20


def test_two_characters_of_a_script_without_spaces_are_a_word():
    assert [c.text for c in chunk([passage("不丹的首都 is 廷布")], by="words", size=2)] == ["不丹的首", "都 is", "廷布"]


def test_the_wholes_of_ids_are_those_of_chunks_alone():
    assert with_wholes(["C#", "guide.md#install", "p#0", "p#1"]) == {"C#", "guide.md#install", "p#0", "p#1", "p"}


def test_chunks_of_white_space_are_left_out(tokenizer):
    text = "a" + "\n" * 50 + "b"
    chunks = chunk([passage(text)], by="tokens", size=5, overlap=0, tokenizer=tokenizer)
    assert all(c.text.strip() for c in chunks)
    assert re.sub(r"\s", "", "".join(c.text for c in chunks)) == "ab"
    assert [c.id for c in chunks] == [f"p#{n}" for n in range(len(chunks))]


@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (5, 5), (5, 6), (5, -1)])
def test_bad_sizes(size, overlap):
    with pytest.raises(UserError, match="cannot overlap"):
        chunk([], by="words", size=size, overlap=overlap)


def test_bad_arguments():
    with pytest.raises(UserError, match="'tokens' or 'words'"):
        chunk([], by="pages", size=1)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="fast tokenizer"):
        chunk([], by="tokens", size=1)
    with pytest.raises(UserError, match="'a#0' is used twice"):
        chunk([Passage("a", "", "one two"), Passage("a#0", "", "x")], by="words", size=1)
