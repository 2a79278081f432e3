"""One atlas for all tests of this folder: gathering the facts takes seconds."""

import pytest

from dragoman.corpus import build_atlas, load_corpus, load_questions
from dragoman.corpus.atlas.build import gather


@pytest.fixture(scope="session")
def atlas():
    return gather()


@pytest.fixture(scope="session")
def atlas_folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("atlas")
    build_atlas(out, seed=0, passages=1500, train=600, dev=150, test=150)
    return out


@pytest.fixture(scope="session")
def atlas_passages(atlas_folder):
    return {passage.id: passage for passage in load_corpus(atlas_folder)}


@pytest.fixture(scope="session")
def atlas_questions(atlas_folder):
    return {split: load_questions(atlas_folder / f"{split}.jsonl") for split in ("train", "dev", "test")}
