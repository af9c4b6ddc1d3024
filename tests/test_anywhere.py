"""What ``make anywhere`` and ``make lab`` read and decide, without running them."""

from __future__ import annotations

from pathlib import Path

import pytest
from anywhere import (
    ROOT,
    Results,
    Row,
    chosen,
    clean,
    constraints,
    dependencies,
    leftovers,
    line,
    lowest,
    stderr_of,
    table,
)
from lab import faults


def test_lowest_versions_are_the_stated_ones() -> None:
    assert lowest("torch>=2.4") == "torch==2.4.*"
    assert lowest("pillow>=10") == "pillow==10.0.*"
    assert lowest("matplotlib-inline>=0.1.6") == "matplotlib-inline==0.1.6.*"
    with pytest.raises(ValueError, match="not of the form"):
        lowest("numpy")


def test_every_dependency_of_the_package_has_a_lowest_version() -> None:
    names = dependencies((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {"torch", "ipywidgets"} <= {name.partition(">")[0] for name in names}
    assert len(constraints("lowest").splitlines()) == len(names)
    assert "torch==" in constraints("pinned")
    assert constraints("newest") == ""
    with pytest.raises(ValueError, match="no list of dependencies"):
        dependencies("[project]\n")


def test_a_kernel_gets_nothing_of_the_checkout() -> None:
    base = {"PYTHONPATH": "src", "DEQBOOK_STATIC": "1", "OMP_NUM_THREADS": "4", "PIP_CERT": "c"}
    env = clean({**base, "PATH": "bin"}, Path("place"))
    assert not {"PYTHONPATH", "DEQBOOK_STATIC", "OMP_NUM_THREADS"} & env.keys()
    assert env["PIP_CERT"] == "c"
    assert env["PATH"].startswith("place")


@pytest.mark.parametrize(
    "text", ["see {ref}`x`", "```{note}\nx\n```", "(sec-x)=", "$$\na\n$$ (eq-x)", ":alt: words"]
)
def test_leftovers_are_found(text: str) -> None:
    assert leftovers(["fine", text])


def test_code_and_mathematics_are_no_leftovers() -> None:
    assert not leftovers(["```python\nprint(f'{x}`')\n:a: b\n```", "$$\na \\tag{1}\n$$"])


def test_what_cells_say_on_stderr() -> None:
    pip = "\x1b[33mWARNING: Location 'file:///x' is ignored\x1b[0m\n"
    texts = ["UserWarning: old\n", pip]
    outputs = [[{"name": "stderr", "text": text}] for text in texts] + [[{"name": "stdout"}]]
    assert stderr_of({"outputs": output} for output in outputs) == ("UserWarning: old",)


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (Row(1.0, sliders=1, moved=1), "ok"),
        (Row(1.0, sliders=2, moved=1), "flawed"),
        (Row(1.0, left=1), "flawed"),
        (Row(1.0, stderr=("a", "a")), "flawed"),
        (Row(1.0, "NameError: x"), "FAILED"),
    ],
)
def test_a_flaw_is_told(row: Row, verdict: str) -> None:
    assert row.ok == (verdict == "ok")
    assert f" {verdict} " in line("00_page", row)


def test_the_table_says_what_failed() -> None:
    rows = {"first cell": Row(9.0), "a": Row(2.0), "b": Row(3.0, "KeyError: x", stderr=("w\nv",))}
    told = "\n".join(table("3.12.1 newest", rows))
    assert told.startswith("== Python 3.12.1 newest")
    assert "    KeyError: x\n    w\n" in told
    assert told.endswith("1 of 2 ok, 5 s")


def test_a_good_result_is_kept_until_something_changes(tmp_path: Path) -> None:
    file, good = tmp_path / "known.json", Row(2.0, stderr=(), versions={"torch": "2.4"})
    Results(file).put("3.12", "a", "f00", good)
    Results(file).put("3.12", "b", "f00", Row(2.0, "KeyError: x"))
    known = Results(file)
    assert known.get("3.12", "a", "f00") == good
    assert known.get("3.12", "a", "bad") is None
    assert known.get("3.13", "a", "f00") is None
    assert known.get("3.12", "b", "f00") is None


def test_notebooks_are_chosen_by_their_beginnings(tmp_path: Path) -> None:
    (tmp_path / "notebooks").mkdir()
    for name in ("00_a", "00_a.student", "01_b"):
        (tmp_path / "notebooks" / f"{name}.ipynb").touch()
    assert [p.stem for p in chosen(tmp_path, [], False)] == ["00_a", "01_b"]
    assert [p.stem for p in chosen(tmp_path, ["00"], True)] == ["00_a.student"]


def test_what_a_browser_shows_is_held_against_the_source() -> None:
    text = "> box $x$\n> on\n\n$$\na \\tag{1}\n$$\n\n<details>\n<summary>P</summary>\n\n</details>"
    cells = [{"cell_type": "markdown", "source": text}, {"cell_type": "code", "source": "> x"}]
    good = {"faults": 0, "folds": 1, "tags": 1, "quotes": 1, "text": ["box on P", "costs 1"]}
    assert faults(cells, good) == []
    for key, told in [("folds", "0 folds shown of 1"), ("tags", "0 tags"), ("quotes", "0 quotes")]:
        assert faults(cells, {**good, key: 0})[0].startswith(told)
    assert faults(cells, {**good, "faults": 2}) == ["2 formulas with an error"]
    for raw in ("so $x$", "\\alpha", "**bold", "[a](b)", "{ref}", "<details>"):
        assert faults(cells, {**good, "text": [raw]})
