"""The answers of the bench of plants are judged strictly."""

from tests.bench.bisect.plants import is_right, plants


def test_an_answer_that_names_one_commit_too_many_or_too_few_is_wrong() -> None:
    one, several = (next(plant for plant in plants() if len(plant.culprits) == length) for length in (1, 8))
    assert is_right(one, list(one.culprits))
    assert not is_right(one, [*one.culprits, "m239"])
    assert not is_right(several, list(several.culprits[1:]))
    assert not is_right(one, [])
