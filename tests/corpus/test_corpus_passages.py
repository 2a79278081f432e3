import statistics

import pytest

from dragoman.core.errors import UserError
from dragoman.core.text import has
from dragoman.corpus.atlas import facts as f
from dragoman.corpus.atlas.passages import choose, render
from dragoman.corpus.atlas.sentences import listing


@pytest.fixture(scope="module")
def pages(atlas):
    return render(atlas, choose(atlas, 1500, seed=0), seed=0)


def test_length(pages):
    words = [len(page.passage.text.split()) for page in pages]
    assert min(words) >= 20 and max(words) <= 120
    assert sum(words) / len(words) >= 45
    assert statistics.quantiles(words, n=20)[0] >= 38  # all but 5 in 100


def test_each_entity_has_one_passage(pages):
    assert len({page.passage.id for page in pages}) == len({page.passage.title for page in pages}) == 1500


def test_a_passage_says_what_it_is_said_to_state(atlas, pages):
    """Subject and object of every stated fact occur in the text, by one of their names."""
    for page in pages:
        text = f"{page.passage.title}. {page.passage.text}"
        assert page.stated
        for fact in page.stated:
            for end in (fact[0], fact[2]):
                entity = atlas.entities.get(end)
                names = [end, *((entity.label, *entity.aliases) if entity else ())]
                assert any(has(text, name) for name in names), (fact, text)


def test_sentences_are_well_formed(pages):
    for page in pages:
        text = page.passage.text
        assert text[0].isupper() or not text[0].isascii()
        assert text.endswith(".") and "{" not in text and "  " not in text and ".." not in text.replace("...", "")
        assert " a a" not in text and " an b" not in text and " , " not in text and "the the " not in text.lower()


def test_wording_varies(pages):
    openings = {
        p.passage.text.replace(p.passage.title, "X").split(".")[0] for p in pages if p.passage.id.startswith("city")
    }
    assert len(openings) > 500
    capital = [p for p in pages if p.passage.id.startswith("country") and any(t[1] == f.CAPITAL for t in p.stated)]
    assert 40 < len(capital) < 120  # some say their capital, others leave it to the capital's passage


def test_the_wording_of_an_entity_depends_on_seed_and_entity_alone(atlas, pages):
    few = choose(atlas, 300, seed=0)
    by_id = {page.passage.id: page.passage for page in pages}
    again = [page.passage for page in render(atlas, few, seed=0)]
    assert all(passage == by_id[passage.id] for passage in again if passage.id in by_id)
    other = [page.passage for page in render(atlas, few, seed=1)]
    assert sum(a != b for a, b in zip(again, other, strict=True)) > 250


@pytest.mark.parametrize("count", [50, 51, 300, 820, 900, 3000])
def test_choose_gives_so_many(atlas, count):
    entities = choose(atlas, count, seed=3)
    assert len({entity.id for entity in entities}) == len(entities) == count


def test_choose_keeps_neighbourhoods_together(atlas):
    names = {entity.name for entity in choose(atlas, 300, seed=1)}
    countries = [name for name in names if atlas.entities[name].kind == "country"]
    whole = [c for c in countries if set(atlas.ends(c, f.CAPITAL) + atlas.ends(c, f.CURRENCY)) <= names]
    assert len(countries) >= 30 and len(whole) >= len(countries) - 1


@pytest.mark.parametrize("count", [0, 49, 100_000])
def test_choose_refuses(atlas, count):
    with pytest.raises(UserError, match="passages: the atlas can have"):
        choose(atlas, count, seed=0)


def test_listing():
    assert [listing(["a"]), listing(["a", "b"]), listing(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
