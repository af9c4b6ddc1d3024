"""What ``make portable`` reads, sets and compares, without running it."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from portable import (
    LEVELS,
    QUICK,
    ROOT,
    Outcome,
    Profile,
    claim_values,
    comparison,
    differences,
    environment,
    failed_tests,
    levels_here,
    numpy_off,
    page_values,
    printed_numbers,
    relative,
    table,
)

NEW = ["X86_V3", "X86_V4", "AVX512_ICL"]  # numpy 2.4
OLD = ["SSE42", "AVX", "FMA3", "AVX2", "AVX512F", "AVX512_SKX"]  # numpy 1.26


def test_a_machine_simulates_what_is_below_it() -> None:
    assert levels_here("x86_64", "AVX512") == ["lowest", "avx2", "native"]
    assert levels_here("AMD64", "AVX2") == ["lowest", "native"]
    assert levels_here("arm64", "DEFAULT") == ["native"]


def test_numpy_is_told_its_own_words() -> None:
    assert numpy_off("lowest", NEW) == NEW
    assert numpy_off("avx2", NEW) == ["X86_V4", "AVX512_ICL"]
    assert numpy_off("avx2", OLD) == ["AVX512F", "AVX512_SKX"]
    assert numpy_off("native", NEW) == []


def test_a_profile_leaves_nothing_of_another_behind() -> None:
    lowest = environment(Profile("lowest", 2), NEW, {"HOME": "/h", "A": "b"}, Path("src"))
    assert LEVELS["lowest"].items() <= lowest.items()
    assert lowest["OMP_NUM_THREADS"] == lowest["DEQBOOK_TEST_THREADS"] == "2"
    assert lowest["NPY_DISABLE_CPU_FEATURES"] == "X86_V3 X86_V4 AVX512_ICL"
    native = environment(Profile("native", 1), NEW, lowest, Path("src"))
    assert native["A"] == "b"
    assert not {key for settings in LEVELS.values() for key in settings} & native.keys()
    assert "NPY_DISABLE_CPU_FEATURES" not in native


def test_a_difference_is_relative_to_what_matters() -> None:
    assert relative(1.0, 1.0 + 1e-9) == pytest.approx(1e-9)
    assert relative(1e-16, 3e-16) > 0.5
    assert relative(1e-16, 3e-16, scale=1e-9) < 1e-6
    assert relative(math.nan, math.nan) == relative(math.inf, math.inf) == 0
    assert relative(1.0, math.nan) == relative(1.0, math.inf) == math.inf


def test_the_largest_difference_of_each_place_is_told_the_worst_first() -> None:
    old = Outcome((), {"a": (1.0, 2.0), "b": (1.0,), "c": (1.0, 1.0), "d": (1.0,), "e": (0.0,)})
    new = Outcome((), {"a": (1.1, 2.0), "b": (2.0,), "c": (1.0,), "d": (1 + 1e-9,), "f": (0.0,)})
    rows = differences(old, new)
    assert [row[0] for row in rows] == ["c", "e", "f", "b", "a"]
    assert [row[1] for row in rows[3:]] == pytest.approx([0.5, 0.1 / 1.1])
    assert rows[4][2:] == (1.0, 1.1)


def test_claims_are_read_with_their_tolerance() -> None:
    def claim(name: str, status: str, value: float, tol: float, bound: float = 0.0) -> dict:
        measured = {"hex": [value.hex(), bound.hex()], "tol": tol}
        return {"id": name, "status": status, "reason": "", "runs": [{"measurements": [measured]}]}

    before = claim_values({"claims": [claim("x", "holds", 1e-15, 1e-8)]})
    after = claim_values({"claims": [claim("x", "fails", 4e-15, 1e-8)]})
    assert before.failures == ()
    assert after.failures == ("x: fails.",)
    assert differences(before, after) == []  # both are zero, as far as the claim says
    far = claim_values({"claims": [claim("x", "fails", 2e-8, 1e-8)]})
    assert differences(before, far)[0][:2] == ("x", pytest.approx(1.0))
    bounded = [claim_values({"claims": [claim("x", "holds", v, 0.0, 1e-8)]}) for v in (1e-15, 0.0)]
    assert differences(*bounded) == []


def test_numbers_are_read_as_printed() -> None:
    assert printed_numbers("a 1.5e-3, −2 and .25 of [3]") == (1.5e-3, -2.0, 0.25, 3.0)
    assert printed_numbers("'3.5·10⁻¹⁶' or 10⁻⁸") == (3.5e-16, 1e-8)
    assert printed_numbers("none") == ()


def test_a_page_is_read_by_cell_and_by_name() -> None:
    def code(*outputs: dict, tags: tuple[str, ...] = ()) -> SimpleNamespace:
        return SimpleNamespace(cell_type="code", metadata={"tags": tags}, outputs=outputs)

    glued = {
        "metadata": {"scrapbook": {"name": "gap"}},
        "data": {"application/papermill.record/text/plain": "0.5"},
    }
    cells = [
        SimpleNamespace(cell_type="markdown"),
        code({"text": "1 of 2"}, glued),
        code({"text": "3 s"}, tags=("wall-clock",)),
        code({"data": {"image/svg+xml": "<svg>7</svg>"}}),
    ]
    found = page_values("p", SimpleNamespace(cells=cells))
    assert found == {"p, cell 0": (1.0, 2.0), "p, cell 0, gap": (0.5,)}


def test_what_failed_and_what_differs_is_printed() -> None:
    said = ". [100%]\nFAILED tests/a.py::b - assert\nERROR tests/c.py\n1 failed"
    failed = failed_tests(said)
    assert failed == ["FAILED tests/a.py::b - assert", "ERROR tests/c.py"]
    native, lowest = Profile("native", 1), Profile("lowest", 2)
    results = {
        (native, "claims"): Outcome((), {"x": (1.0,)}),
        (lowest, "claims"): Outcome(tuple(failed), {"x": (2.0,)}),
    }
    lines = list(table(results))
    assert lines[0].startswith("native, 1 thread ")
    assert "holds" in lines[0]
    assert lines[1].startswith("lowest, 2 threads")
    assert "2 FAILED" in lines[1]
    assert lines[2:] == ["    " + line for line in failed]
    assert list(comparison(results)) == [
        "claims, lowest, 2 threads against native, 1 thread: 1 of 1 differ",
        "     5.0e-01  x: 1 → 2",
    ]


@pytest.mark.parametrize("path", QUICK)
def test_the_quick_tests_are_there(path: str) -> None:
    assert (ROOT / path).exists()
