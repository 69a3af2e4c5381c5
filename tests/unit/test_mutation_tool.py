"""The mutation runner itself: which mistakes it makes, and that one put into running code is really there."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tools.mutation.covering import AT_IMPORT, read
from tools.mutation.modules import PARTS
from tools.mutation.mutants import mutants, mutated
from tools.mutation.report import equivalents
from tools.mutation.trying import put_in_place
from tools.sources import ROOT, file_of

SOURCE = '''
"""A docstring is left alone."""
from functools import cached_property
LIMITS = frozenset({"a", "b"})

def over(x: int, most: float = 2.0) -> bool:
    """So is this."""
    return x > most and x not in LIMITS

class Box:
    size = 3

    def __init__(self, n):
        self.n = n

    @property
    def full(self):
        return f"{self.n} of {self.size}" if self.n >= self.size else None
'''


def words(source: str) -> set[str]:
    return {mutant.words for mutant in mutants(source)}


def test_every_kind_of_mistake_is_made_and_words_are_left_alone() -> None:
    found = words(SOURCE)
    assert {
        "x > most → x >= most",
        "x > most → x <= most",
        "x > most and x not in LIMITS → x > most or x not in LIMITS",
        "x > most and x not in LIMITS → x > most",
        "{'a', 'b'} → without 'a'",
        "2.0 → 4.0",
        "3 → 2",
        "self.n = n → pass",
        "return x > most and x not in LIMITS → return None",
    } <= found
    assert not [
        one for one in found if "docstring" in one or "So is" in one or "import" in one or " of " in one.split(" → ")[0][:3]
    ]


@pytest.mark.parametrize(
    ("sql", "mistakes"),
    [
        (
            "SELECT a FROM b WHERE c <= ? AND d IS NULL ORDER BY id DESC",
            {"c < ?", "OR d IS NULL", "d IS NOT NULL", "id ASC", "FROM b"},
        ),
        ("UPDATE a SET ok=1 WHERE id=?", {"ok=0", "WHERE id!=?", "ok=1"}),
        ("PRAGMA synchronous=FULL", {"synchronous=OFF"}),
    ],
)
def test_a_statement_of_sql_is_mutated_inside(sql: str, mistakes: set[str]) -> None:
    found = [ast.literal_eval(mutant.after) for mutant in mutants(f"S = {sql!r}")]
    assert all(any(mistake in one for one in found) for mistake in mistakes)
    assert sql not in found


def test_each_mutant_differs_from_the_source_and_can_be_compiled() -> None:
    plain = ast.dump(ast.parse(SOURCE))
    for mutant in mutants(SOURCE):
        tree = mutated(SOURCE, mutant.place, mutant.variant)
        assert ast.dump(tree) != plain
        compile(tree, "x.py", "exec")


def test_what_runs_at_import_has_no_function_and_what_does_not_has_its_name() -> None:
    functions = {mutant.words: mutant.function for mutant in mutants(SOURCE)}
    assert functions["{'a', 'b'} → without 'a'"] == functions["2.0 → 4.0"] == functions["3 → 2"] == ""
    assert functions["x > most → x >= most"] == "over"
    assert functions["self.n >= self.size → self.n > self.size"] == "Box.full"


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    file = tmp_path / "mutated_one.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("mutated_one", file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["mutated_one"] = made
    spec.loader.exec_module(made)
    yield made
    del sys.modules["mutated_one"]


def put(module: ModuleType, which: str) -> None:
    mutant = next(mutant for mutant in mutants(SOURCE) if mutant.words == which)
    put_in_place(module, mutated(SOURCE, mutant.place, mutant.variant), str(module.__file__))


def test_a_mutant_is_in_force_for_whoever_holds_the_function_already(module: ModuleType) -> None:
    over, box = module.over, module.Box(3)
    assert (over(2), box.full) == (False, "3 of 3")
    put(module, "x > most → x >= most")
    assert over(2) is True
    put(module, "self.n >= self.size → self.n > self.size")
    assert (box.full, over(2)) == (None, False)


def test_a_mutant_of_what_ran_at_import_is_not_put_in_place(module: ModuleType) -> None:
    with pytest.raises(LookupError):
        put(module, "3 → 2")


def test_a_later_run_is_believed_of_the_tests_that_it_ran(tmp_path: Path) -> None:
    for number, (cpu, lines) in enumerate(
        [
            ('{"t.py::one": 1, "u.py::two": 2}', '{"7": ["t.py::one", "u.py::two", ""], "8": ["t.py::one"]}'),
            ('{"t.py::three": 3}', '{"7": ["t.py::three"]}'),
        ]
    ):
        run = tmp_path / f"{number:04}"
        run.mkdir()
        (run / "1.json").write_text(f'{{"cpu_s": {cpu}, "lines": {{"a.py": {lines}}}}}')
    seen = read(tmp_path)
    assert seen.cpu_s == {"u.py::two": 2, "t.py::three": 3}
    assert seen.of("a.py", 7, 7) == {"t.py::three", "u.py::two", AT_IMPORT}
    assert seen.of("a.py", 8, 8) == set()
    assert seen.of_all("a.py") == {"t.py::three", "u.py::two"}


def test_what_is_mutated_is_there_with_its_own_tests_and_each_judgement_has_its_reason() -> None:
    for part in PARTS.values():
        assert all(file_of(module).is_file() for module in part.modules)
        assert all((ROOT / test).is_file() for test in part.own_tests)
    modules = {module for part in PARTS.values() for module in part.modules}
    for judged in equivalents():
        assert judged.module in modules
        assert len(judged.reason.split()) >= 5
