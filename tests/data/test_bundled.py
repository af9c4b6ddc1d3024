import shutil

import numpy as np
import pytest
import torch

from deqbook.data import DataError, bundled, load, names, parallel_pairs, path

BINARY = ("mnist01", "fashion01", "cifar01", "svhn01")
ALL = (*BINARY, "mnist10", "cifar10small")


def test_catalogue_names_every_bundled_file_and_no_other():
    assert tuple(names()) == ALL
    assert {file.stem for file in bundled.FOLDER.glob("*.npz")} == set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_files_hold_what_the_catalogue_says(name):
    entry = names()[name]
    with np.load(path(name)) as archive:
        assert archive["x_train"].shape == entry.train
        assert archive["x_test"].shape == entry.test
        assert all(archive[key].dtype == np.uint8 for key in bundled.SPLITS)
        for split in ("y_train", "y_test"):
            assert np.unique(archive[split]).tolist() == [code for code, _ in entry.classes]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("norm", ["unit", "sqrt_d"])
def test_norms_are_exact(name, norm):
    data = load(name, norm=norm)
    radius = 1.0 if norm == "unit" else {784: 28.0, 768: 768**0.5}[data.d]
    for x in (data.x_train, data.x_test):
        assert x.dtype == torch.float64
        assert (x.norm(dim=1) - radius).abs().max() < 1e-12 * radius


def test_without_norm_pixels_are_bytes_over_255():
    data = load("mnist01", norm=None)
    with np.load(path("mnist01")) as archive:
        expected = archive["x_train"].reshape(1000, 784) / 255
    assert np.array_equal(data.x_train.numpy(), expected)


@pytest.mark.parametrize("name", BINARY)
def test_binary_labels_are_signs_balanced_and_match_the_file(name):
    data = load(name)
    with np.load(path(name)) as archive:
        raw = {"train": archive["y_train"], "test": archive["y_test"]}
    for y, original in ((data.y_train, raw["train"]), (data.y_test, raw["test"])):
        assert y.dtype == torch.float64
        assert y.unique().tolist() == [-1.0, 1.0]
        assert y.sum() == 0
        assert np.array_equal(y.numpy() == 1, original == 1)
    # Mixed order: a prefix used for a small experiment must hold enough of both classes.
    share = (data.y_train[:200] == 1).double().mean()
    assert 0.2 < share < 0.8


def test_ten_classes_keep_integers_and_balance():
    data = load("mnist10")
    assert data.y_train.dtype == torch.int64
    assert data.y_train.bincount().tolist() == [500] * 10
    assert data.y_test.bincount().tolist() == [100] * 10


def test_two_files_cut_by_one_rule_agree_where_they_overlap():
    two, ten = load("mnist01", norm=None), load("mnist10", norm=None)
    for code, sign in ((0, -1), (1, 1)):
        same = two.x_train[two.y_train == sign]
        assert torch.equal(ten.x_train[ten.y_train == code], same)
        assert torch.equal(ten.x_test[ten.y_test == code], two.x_test[two.y_test == sign][:100])


@pytest.mark.parametrize("name", ALL)
def test_bundled_sets_need_no_noise(name):
    data = load(name)
    assert data.perturbed == ()
    assert len(parallel_pairs(data.x_train)) == 0


def test_train_and_test_share_no_picture():
    for name in ALL:
        data = load(name, norm=None)
        train = {row.numpy().tobytes() for row in data.x_train}
        assert len(train) == data.n
        assert train.isdisjoint(row.numpy().tobytes() for row in data.x_test)


def test_smaller_sets_are_prefixes():
    whole, part = load("svhn01"), load("svhn01", n_train=200, n_test=30)
    assert (part.n, part.n_test, part.d) == (200, 30, 784)
    assert torch.equal(part.x_train, whole.x_train[:200])
    assert torch.equal(part.y_test, whole.y_test[:30])


def test_unflattened_samples_are_channel_first_images():
    data, rows = load("cifar01", flatten=False), load("cifar01")
    assert data.x_train.shape == (1000, 1, 28, 28)
    assert data.d == 784
    assert torch.equal(data.x_train.flatten(1), rows.x_train)


def test_float32_is_the_rounded_float64():
    low, high = load("mnist01", dtype=torch.float32), load("mnist01")
    assert low.x_train.dtype == low.y_train.dtype == torch.float32
    assert torch.equal(low.x_train, high.x_train.float())


def test_loads_are_equal_and_independent():
    first, second = load("mnist01"), load("mnist01")
    first.x_train[0] = 0
    assert not torch.equal(first.x_train, second.x_train)
    assert torch.equal(second.x_train, load("mnist01").x_train)


def test_repr_is_one_line_that_tells_labels():
    assert repr(load("fashion01", n_train=20)) == (
        "Dataset('fashion01', 20 train + 1000 test, d = 784, norm 'unit', "
        "labels -1 T-shirt/top, +1 trouser)"
    )
    assert "10 classes" in repr(load("mnist10", n_train=20))


@pytest.fixture
def copied(tmp_path, monkeypatch):
    shutil.copy(path("mnist01"), tmp_path)
    monkeypatch.setattr(bundled, "FOLDER", tmp_path)
    return tmp_path / "mnist01.npz"


def test_a_faithful_copy_loads(copied):
    assert load("mnist01").n == 1000


def test_one_flipped_bit_is_caught_even_after_a_good_load(copied):
    load("mnist01")
    raw = bytearray(copied.read_bytes())
    raw[len(raw) // 2] ^= 1
    copied.write_bytes(raw)
    expected = names()["mnist01"].sha256
    for _ in range(2):  # a remembered check must not turn the second load into a success
        with pytest.raises(DataError, match=f"damaged: expected SHA-256 {expected}, found") as e:
            load("mnist01")
        assert "restore the file" in str(e.value)


def test_missing_file_says_so(copied):
    copied.unlink()
    with pytest.raises(DataError, match=r"missing \(expected SHA-256 82f01f4b.*reinstall"):
        load("mnist01")


def test_checksum_is_computed_once_per_process(monkeypatch):
    load("mnist01")
    before = bundled._sha256.cache_info()
    load("mnist01")
    after = bundled._sha256.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: load("mnist"), "no bundled data set is called 'mnist'.*mnist01.*load_full"),
        (lambda: path("nope"), "called 'nope'"),
        (lambda: load("mnist01", n_train=1001), "n_train = 1001, but between 1 and 1000"),
        (lambda: load("mnist01", n_test=0), "n_test = 0"),
        (lambda: load("mnist01", norm="l2"), "norm must be one of .*got 'l2'"),
        (lambda: load("mnist01", dtype=torch.int64), r"floating-point type, got torch\.int64"),
    ],
)
def test_wrong_arguments_are_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_notice_travels_with_the_data():
    text = (bundled.FOLDER / "NOTICE.md").read_text(encoding="utf-8")
    for name, entry in names().items():
        assert f"`{name}.npz`" in text
        assert entry.sha256 in text
    for must in ("Copyright © 2017 Zalando SE", "non-commercial", "Attribution-ShareAlike 3.0"):
        assert must in text
