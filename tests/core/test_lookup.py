"""Prompt lookup against a search through the whole text."""

from hypothesis import given
from hypothesis import strategies as st

from unmask.core.lookup import LONGEST, SHORTEST, Lookup


def searched(tokens: list[int], most: int) -> tuple[int, list[int]]:
    """The longest run at the end that stood before, at its last place, found by looking everywhere."""
    for n in range(LONGEST, SHORTEST - 1, -1):
        places = [at for at in range(n, len(tokens)) if n < len(tokens) and tokens[at - n : at] == tokens[-n:]]
        if places:
            return n, tokens[places[-1] : places[-1] + most]
    return 0, []


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(1, 5)), st.integers(1, 9))
def test_equals_a_search_however_the_text_came(tokens, cuts, most):
    text, at = Lookup(tokens[:3]), 3
    for cut in [*cuts, 99]:
        text.extend(tokens[at : at + cut])
        at += cut
    assert text.guess(most) == searched(tokens, most)


def test_the_last_place_of_the_longest_run_wins():
    text = Lookup([1, 2, 3, 9, 1, 2, 3, 8, 0, 2, 3, 7, 1, 2, 3])
    assert text.guess(4) == (3, [8, 0, 2, 3])
    text.extend([8])
    assert text.guess(2) == (4, [0, 2])


def test_nothing_is_guessed_from_a_text_without_repetition():
    assert Lookup([1, 2, 3, 4]).guess(8) == (0, []) == Lookup().guess(8)


def test_the_end_of_the_text_does_not_find_itself():
    assert Lookup([5, 5, 5]).guess(3) == (2, [5]), "the run at 0 and 1, which 5 followed"
