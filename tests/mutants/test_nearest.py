"""The nearest tests: own doctests, same name, same folder, importers, in this order."""

from pathlib import Path

from tests.mutants.nearest import find_tests


def write(root: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_nearest_tests_come_first(tmp_path: Path) -> None:
    write(
        tmp_path,
        ci__nightjar_ci__gate__rule='""">>> 1\n1"""',
        ci__nightjar_ci__report__page="from nightjar_ci.gate import rule",
        ci__nightjar_ci__report__other="import nightjar_ci",
        tests__ci__gate__test_other="",
        tests__ci__gate__test_rule="",
        tests__ci__report__test_page="",
        tests__ci__report__test_other="",
        tests__ci__store__test_store="    from nightjar_ci.gate.rule import judge",
        tests__bench__gate__test_rule="from nightjar_ci.gate.rule import judge",
    )
    assert find_tests(tmp_path, "ci/nightjar_ci/gate/rule.py") == [
        "ci/nightjar_ci/gate/rule.py",
        "tests/ci/gate/test_rule.py",
        "tests/ci/gate/test_other.py",
        "tests/ci/store/test_store.py",
        "tests/ci/report/test_page.py",
    ]


def test_a_room_without_tests_of_its_own_is_tested_by_the_one_above(tmp_path: Path) -> None:
    write(tmp_path, ci__nightjar_ci__gate__inner__rule="", tests__ci__gate__test_gate="", tests__ci__test_cli="")
    assert find_tests(tmp_path, "ci/nightjar_ci/gate/inner/rule.py") == ["tests/ci/gate/test_gate.py"]
