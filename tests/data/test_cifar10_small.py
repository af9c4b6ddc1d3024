"""The ten-class CIFAR-10 subset: how it was cut and averaged, repeated on originals."""

import dataclasses
import io
import tarfile
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest
import torch

from deqbook.data import downsample, full, load, load_full, names, path, select

ORIGINALS = Path(__file__).with_name("cifar_rgb.npz")


def test_the_pictures_are_averages_of_originals():
    with np.load(ORIGINALS) as archive:
        colour = archive["rgb"]  # the first two airplanes, then the first two automobiles
    with np.load(path("cifar10small")) as archive:
        x, y = archive["x_train"], archive["y_train"]
    expected = np.concatenate((x[y == 0][:2], x[y == 1][:2]))
    assert np.array_equal(downsample(colour, 2), expected)


def test_means_round_halves_up_and_keep_colours_apart():
    square = np.array([[[[0, 1, 255], [1, 1, 255]], [[0, 1, 255], [1, 2, 254]]]], np.uint8)
    assert downsample(square, 2).tolist() == [[[[1, 1, 255]]]]  # 2/4, 5/4, 1019/4
    gray = np.arange(16, dtype=np.uint8).reshape(1, 4, 4)
    assert downsample(gray, 2).tolist() == [[[3, 5], [11, 13]]]  # 2.5, 4.5, 10.5, 12.5
    assert np.array_equal(downsample(gray, 1), gray)


def test_large_blocks_do_not_overflow():
    white = np.full((1, 32, 32, 3), 255, np.uint8)
    assert downsample(white, 32).tolist() == [[[[255] * 3]]]


@pytest.mark.parametrize(
    ("images", "block", "sentence"),
    [
        (np.zeros((2, 32, 32, 3), np.uint8), 3, "block = 3 does not divide .* 32 x 32"),
        (np.zeros((2, 32, 32), np.uint8), 0, "block = 0 does not divide"),
        (np.zeros((2, 32, 32)), 2, r"got float64 \(2, 32, 32\)"),
        (np.zeros((32, 32), np.uint8), 2, r"got uint8 \(32, 32\)"),
    ],
)
def test_what_cannot_be_averaged_is_named(images, block, sentence):
    with pytest.raises(ValueError, match=sentence):
        downsample(images, block)


def test_labels_are_ten_classes_in_balance():
    small = load("cifar10small", flatten=False)
    assert small.x_train.shape == (2000, 3, 16, 16)
    assert small.y_train.bincount().tolist() == [200] * 10
    assert small.y_test.bincount().tolist() == [100] * 10
    assert small.classes[6] == "frog"
    assert [code for code, _ in names()["cifar10small"].classes] == list(range(10))


def test_the_file_is_small():
    assert path("cifar10small").stat().st_size < 2.5e6


def test_the_complete_set_is_cut_by_the_same_rule(tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    x = rng.integers(0, 256, (120, 32, 32, 3), dtype=np.uint8)
    y = np.concatenate([rng.permutation(10) for _ in range(12)]).astype(np.uint8)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for k in range(6):
            part = slice(20 * k, 20 * k + 20)
            planes = x[part].transpose(0, 3, 1, 2).reshape(20, -1)
            raw = np.concatenate((y[part, None], planes), axis=1).tobytes()
            stem = f"data_batch_{k + 1}" if k < 5 else "test_batch"
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{stem}.bin")
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    raw = buffer.getvalue()
    source = dataclasses.replace(
        full._SOURCES["cifar10"],
        servers=("http://127.0.0.1:9/",),
        md5={"cifar-10-binary.tar.gz": md5(raw).hexdigest()},
    )
    monkeypatch.setitem(full._SOURCES, "cifar10", source)
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "cifar-10-binary.tar.gz").write_bytes(raw)
    got = load_full(
        "cifar10", per_class=(4, 2), gray=False, block=2, norm=None, flatten=False, folder=tmp_path
    )
    keep = select(y[:100], range(10), 4)
    expected = torch.from_numpy(downsample(x[:100][keep], 2)).permute(0, 3, 1, 2).double() / 255
    assert torch.equal(got.x_train, expected)
    assert got.x_test.shape == (20, 3, 16, 16)
    assert got.y_train.tolist() == y[:100][keep].tolist()
