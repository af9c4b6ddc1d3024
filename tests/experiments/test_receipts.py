"""Result files with receipts, the journal behind them, and the command that makes them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deqbook.cli import main
from deqbook.experiments import opteq_tables, tables
from deqbook.experiments.receipts import (
    Cost,
    Provenance,
    ReceiptError,
    code_hash,
    digest,
    read,
    write,
)
from deqbook.pages.p05c_opteq_images.lab.long_range import Scene
from deqbook.pages.p05c_opteq_images.lab.training import ClassifierRun, train

RUNS = [
    {"group": "a", "case": {"x": 1, "w": [1, 2]}, "result": {"y": 0.1}},
    {"group": "a", "case": {"x": 2, "w": [1, 2]}, "result": {"y": None}},
    {"group": "b", "case": {"x": 1, "w": [3]}, "result": {"y": 1e-300}},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "r.json"


def test_a_file_is_read_back_as_it_was(file: Path) -> None:
    receipt = write(file, "make it", {"torch": "1"}, RUNS)
    found = read(file)
    assert found.receipt == receipt
    assert list(found.runs) == RUNS
    assert "make it" in str(receipt)
    assert receipt.sha256 in str(receipt)
    write(file.with_name("again.json"), "make it", {"torch": "1"}, RUNS)
    assert file.read_bytes() == file.with_name("again.json").read_bytes()


def test_select_finds_cells(file: Path) -> None:
    write(file, "make it", {}, RUNS)
    found = read(file)
    assert found.select("a", w=(1, 2), x=2) == [RUNS[1]]
    assert found.select("a", x=3) == []
    with pytest.raises(KeyError, match="no runs of group 'c'; there are a, b"):
        found.select("c")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"y":0.1', '"y":0.2'),
        ("make it", "make up"),
        ('"torch":"1"', '"torch":"2"'),
        ('"x":2', '"x":3'),
    ],
)
def test_whatever_is_touched_is_noticed(file: Path, old: str, new: str) -> None:
    write(file, "make it", {"torch": "1"}, RUNS)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(ReceiptError, match=r"does not match its receipt.*make it anew"):
        read(file)


def test_missing_and_foreign_files_are_named(file: Path) -> None:
    with pytest.raises(ReceiptError, match="is missing"):
        read(file)
    file.write_text("[]")
    with pytest.raises(ReceiptError, match="not a result file"):
        read(file)
    file.write_bytes(b'{"receipt": "\xff"}')
    with pytest.raises(ReceiptError, match="not a result file"):
        read(file)
    write(file, "c", {}, RUNS)
    file.write_text(file.read_text().replace("0.1", "NaN", 1))
    with pytest.raises(ReceiptError, match="not a result file"):
        read(file)


def test_a_number_that_is_none_cannot_hide(file: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write(file, "c", {}, [{"group": "a", "case": {}, "result": float("nan")}])


def test_the_hash_does_not_depend_on_the_order_of_keys() -> None:
    turned = [{k: r[k] for k in reversed(r)} for r in RUNS]
    assert digest("c", {"a": "1", "b": "2"}, RUNS) == digest("c", {"b": "2", "a": "1"}, turned)
    assert digest("c", {}, RUNS) != digest("c", {}, RUNS[::-1])


MADE_BY = Provenance("c0de", {"mnist01": "da7a"}, (0, 1))


def test_a_receipt_tells_code_data_and_seeds_and_binds_them(file: Path) -> None:
    cost = Cost("a processor", (1.0, 2.0, 3597.0))
    receipt = write(file, "c", {}, RUNS, made_by=MADE_BY, cost=cost)
    found = read(file)
    assert found.receipt == receipt
    assert found.receipt.made_by == MADE_BY
    assert found.cost == cost
    assert found.cost.hours == 1.0
    assert "seeds     0, 1" in str(receipt)
    assert receipt.sha256 != digest("c", {}, RUNS)
    file.write_text(file.read_text().replace("c0de", "f00d"))
    with pytest.raises(ReceiptError, match="does not match its receipt"):
        read(file)


def test_the_cost_is_outside_the_hash(file: Path) -> None:
    first = write(file, "c", {}, RUNS, made_by=MADE_BY, cost=Cost("one", (1.0, 1.0, 1.0)))
    before = read(file)
    assert write(file, "c", {}, RUNS, made_by=MADE_BY, cost=Cost("two", (2.0, 2.0, 2.0))) == first
    assert read(file) == before


def test_the_code_hash_sees_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "deqbook.experiments.cases.descent"
    before = code_hash([name])
    assert code_hash([name]) == before != code_hash([])
    whole = Path.read_bytes
    changed = lambda f: whole(f) + (b"#" if f.name == "descent.py" else b"")  # noqa: E731
    monkeypatch.setattr(Path, "read_bytes", changed)
    assert code_hash([name]) != before
    with pytest.raises(ReceiptError, match=r"code of deqbook\.nothing is not found"):
        code_hash(["deqbook.nothing"])


# --- the file that ships --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped():
    return read(opteq_tables.shipped())


def test_the_shipped_file_holds_exactly_what_its_command_runs(shipped) -> None:
    assert shipped.receipt.command == "deqbook reproduce opteq-tables"
    stored = [(r["group"], opteq_tables.restore(r["group"], r["case"])) for r in shipped.runs]
    assert stored == opteq_tables.miniature()
    assert set(shipped.receipt.versions) == {"python", "torch", "numpy"}


def test_every_cell_of_the_tables_is_there_for_every_seed(shipped) -> None:
    for alpha in opteq_tables.ALPHAS:
        for route in opteq_tables.ROUTES.values():
            wanted = {"route": "none", "regulariser": "none", **route, "alpha": alpha}
            cell = shipped.select("table3", **wanted)
            assert [r["case"]["seed"] for r in cell] == list(opteq_tables.SEEDS)
            assert all(0.05 < r["result"]["accuracy"][-1] < 0.6 for r in cell)
    assert {r["group"] for r in shipped.runs} == set(opteq_tables.GROUPS)


def test_the_first_epochs_of_a_stored_run_come_out_again(shipped) -> None:
    (stored,) = shipped.select(
        "table3", alpha=0.1, route="architecture", regulariser="decorrelation", seed=1
    )
    case = opteq_tables.restore("table3", stored["case"])
    again = train(replace(case, epochs=1))
    assert again.loss[0] == pytest.approx(stored["result"]["loss"][0], rel=1e-6)
    assert again.norm == pytest.approx(stored["result"]["norm"][:2], rel=1e-6)
    assert again.accuracy[0] == pytest.approx(stored["result"]["accuracy"][0], abs=0.002)
    other = train(replace(case, epochs=1, seed=2))
    assert other.loss[0] != pytest.approx(stored["result"]["loss"][0], rel=1e-6)


def test_a_stored_segmentation_comes_out_again(shipped) -> None:
    (stored,) = shipped.select("table2", network="fcn", noise=0.0, seed=0)
    scene = opteq_tables.restore("table2", stored["case"])
    again = opteq_tables.run(replace(scene, updates=20))
    # Single precision, so other processors may round otherwise; the first updates hardly feel it.
    assert again.loss == pytest.approx(stored["result"]["loss"][:20], rel=1e-3)


# --- the command ----------------------------------------------------------------------------------

FEW = [
    ("table2", Scene("fcn", channels=(3,), height=3, width=4, updates=2)),
    ("depth", ClassifierRun(n_train=125, n_test=125, epochs=1, steps=1)),
]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(opteq_tables, "miniature", lambda: list(FEW))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_writes_and_compares(few: Path, capsys) -> None:
    assert main(["reproduce", "opteq-tables"]) == 0
    out = capsys.readouterr().out
    found = read(few / "opteq-tables.json")
    assert found.receipt.sha256 in out
    assert "2 cases are not in the shipped file" in out
    assert [r["group"] for r in found.runs] == ["table2", "depth"]
    assert main(["reproduce", "opteq-tables", "--out", "b.json", "--jobs", "2"]) == 0
    assert read(few / "b.json") == found  # all but the cost
    assert "verdict: not run" in out
    assert [f.name for f in few.iterdir() if f.is_dir()] == []


def test_the_comparison_measures_a_difference(few: Path) -> None:
    assert main(["reproduce", "opteq-tables", "--only", "depth"]) == 0
    file = few / "opteq-tables-depth.json"  # a part does not replace the whole
    assert not (few / "opteq-tables.json").exists()
    assert read(file).receipt.command == "deqbook reproduce opteq-tables --only depth"
    changed = [json.loads(json.dumps(r)) for r in read(file).runs]
    changed[0]["result"]["accuracy"][0] += 0.015
    write(few / "old.json", "c", {}, changed)
    lines = tables.compare(read(file), read(few / "old.json"))
    assert lines[1].split() == ["depth", "1.50", "points"]
    changed[0]["result"]["accuracy"].append(0.5)  # the other run went on for longer
    write(few / "old.json", "c", {}, changed)
    lines = tables.compare(read(file), read(few / "old.json"))
    assert any("1 runs ended earlier or later" in line for line in lines)


def test_the_command_takes_what_another_file_has(few: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(opteq_tables, "miniature", lambda: FEW[:1])
    assert main(["reproduce", "opteq-tables", "--out", "a.json"]) == 0
    monkeypatch.setattr(opteq_tables, "miniature", lambda: list(FEW))
    assert main(["reproduce", "opteq-tables", "--take", "a.json"]) == 0
    assert "1 case of 2 is in a.json; it runs again" in capsys.readouterr().out
    assert read(few / "opteq-tables.json").runs[0] == read(few / "a.json").runs[0]
    assert main(["reproduce", "opteq-tables", "--take", "c.json"]) == 2
    assert "c.json is missing" in capsys.readouterr().err


def test_lists_and_refusals(few: Path, capsys) -> None:
    assert main(["reproduce", "opteq-tables", "--list", "--only", "depth"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert main(["reproduce", "opteq-tables", "--only", "nothing"]) == 2
    assert "no group 'nothing' here; there are table2, depth" in capsys.readouterr().err
    assert main(["reproduce", "opteq-tables", "--jobs", "0"]) == 2
    assert main(["reproduce", "nothing"]) == 2
    assert "no experiment 'nothing'; there are gao2022-fig1" in capsys.readouterr().err
    assert main(["reproduce", "nguyen2022-fig4.4", "--profile", "paper"]) == 2
    assert "has no profile 'paper'" in capsys.readouterr().err
    assert main(["reproduce", "opteq-tables", "--device", "nowhere"]) == 2
    assert "torch has no device 'nowhere'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["reproduce", "opteq-tables", "--budget", "soon"])
    assert "'soon' is not a time; write 90m" in capsys.readouterr().err
    assert list(few.iterdir()) == []


def test_the_full_size_says_what_it_takes_and_wants_a_gpu(few: Path, capsys, monkeypatch) -> None:
    full = opteq_tables.full()
    assert len(full) == 30
    assert [g for g, _ in full[::6]] == [f"alpha-{a:g}" for a in opteq_tables.ALPHAS]
    assert {c.epochs for _, c in full} == {200}
    assert full[0][1].widths == (16, 32, 64, 128, 128)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(
        "deqbook.pages.p05c_opteq_images.lab.training.update_seconds", lambda case: 0.36
    )
    assert main(["reproduce", "opteq-tables", "--profile", "paper"]) == 2
    said = capsys.readouterr()
    assert "about 8 hours a case" in said.out  # 0.36 s x 391 updates x 200 epochs
    assert "this size needs a GPU" in said.err
    assert list(few.iterdir()) == []
