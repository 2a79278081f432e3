"""How many examples a property draws whose body is dear. The others draw as many as the profile says."""

from hypothesis import settings


def examples(fast: int = 25, thorough: int = 100) -> settings:
    """Of the profile in use (`tests/conftest.py`), with another number of examples: one for each of the two.

    Both draw the same ones at first, so an equal number would check nothing in `make test-all` that `make test` has not.
    """
    return settings(max_examples=thorough if settings.get_current_profile_name() == "thorough" else fast)
