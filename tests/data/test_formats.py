import io
import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from deqbook.data import DataError, gray28, parse_cifar, parse_idx, parse_svhn, path, select

RNG = np.random.default_rng(0)


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def mat(**variables):
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, variables)
    return buffer.getvalue()


def test_idx_round_trip():
    for shape in ((5,), (4, 3, 2), (2, 28, 28)):
        array = RNG.integers(0, 256, shape, dtype=np.uint8)
        assert np.array_equal(parse_idx(idx(array)), array)


def test_idx_sizes_are_big_endian():
    raw = b"\0\0\x08\x02" + b"\0\0\0\x01" + b"\0\0\0\x03" + b"\x07\x08\x09"
    assert parse_idx(raw).tolist() == [[7, 8, 9]]


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"\x1f\x8b\x08\x00", "decompress it first"),
        (b"", "not an IDX file"),
        (b"\0\0\x0d\x01\0\0\0\0", "type 0x0d is not read here"),
        (b"\0\0\x08\x03\0\0", "rank 3 needs 16 bytes, found 6"),
        (idx(np.zeros(4, np.uint8))[:-1], r"sizes \(4,\) announce 4 bytes of data, found 3"),
        (idx(np.zeros(4, np.uint8)) + b"x", "found 5; the file is incomplete or has trailing"),
    ],
)
def test_broken_idx_is_named(raw, sentence):
    with pytest.raises(DataError, match=sentence):
        parse_idx(raw)


def test_cifar_planes_become_channels():
    images = RNG.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    labels = [0, 9, 4]
    raw = b"".join(
        bytes([label]) + b"".join(image[:, :, c].tobytes() for c in range(3))
        for label, image in zip(labels, images, strict=True)
    )
    got, codes = parse_cifar(raw)
    assert np.array_equal(got, images)
    assert codes.tolist() == labels


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"", "multiple of 3073 bytes, found 0"),
        (bytes(3072), "found 3072"),
        (bytes([10]) + bytes(3072), "labels are 0 to 9, found 10"),
    ],
)
def test_broken_cifar_is_named(raw, sentence):
    with pytest.raises(DataError, match=sentence):
        parse_cifar(raw)


def test_svhn_samples_come_first_and_ten_means_zero():
    images = RNG.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    raw = mat(X=images.transpose(1, 2, 3, 0), y=np.array([[10], [1], [9], [10]], np.uint8))
    got, labels = parse_svhn(raw)
    assert np.array_equal(got, images)
    assert labels.tolist() == [0, 1, 9, 0]
    assert labels.dtype == np.uint8


ONE = np.zeros((32, 32, 3, 1), np.uint8)


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"<html>not found</html>", "not a readable MATLAB file"),
        (mat(X=ONE), r"no variable \['y'\]"),
        (mat(X=ONE, y=[[1], [2]]), r"shape \(32, 32, 3, 2\) to fit y, found uint8"),
        (mat(X=ONE.astype(float), y=[[1]]), "found float64"),
        (mat(X=ONE, y=[[0]]), "labels are 1 to 10"),
    ],
)
def test_broken_svhn_is_named(raw, sentence):
    with pytest.raises(DataError, match=sentence):
        parse_svhn(raw)


def test_gray_conversion_reproduces_the_bundled_pictures():
    with np.load(Path(__file__).with_name("cifar_rgb.npz")) as archive:
        colour = archive["rgb"]  # the first two airplanes, then the first two automobiles
    with np.load(path("cifar01")) as archive:
        x, y = archive["x_train"], archive["y_train"]
    expected = np.concatenate((x[y == 0][:2], x[y == 1][:2]))
    assert np.array_equal(gray28(colour), expected)


def test_gray_weights():
    flat = np.zeros((3, 32, 32, 3), np.uint8)
    for k in range(3):
        flat[k, ..., k] = 200
    assert gray28(flat)[:, 5, 5].tolist() == [60, 117, 23]  # 200 x 0.299, 0.587, 0.114


def test_gray_refuses_what_is_no_colour_picture():
    with pytest.raises(ValueError, match=r"got uint8 \(2, 28, 28\)"):
        gray28(np.zeros((2, 28, 28), np.uint8))


def test_selection_follows_the_rule_step_by_step():
    y = RNG.integers(0, 4, 200)
    count, expected = {1: 0, 3: 0}, []
    for k in np.random.default_rng(0).permutation(200):
        if y[k] in count and count[y[k]] < 20:
            count[y[k]] += 1
            expected.append(k)
    assert select(y, (1, 3), 20).tolist() == expected
    assert sorted(select(y, (1, 3), None)) == np.flatnonzero((y == 1) | (y == 3)).tolist()


def test_selection_refuses_what_is_not_there():
    y = np.array([0, 0, 1])
    with pytest.raises(ValueError, match=r"class 1 has 1 samples, asked for 2; .*\[0, 1\]"):
        select(y, (0, 1), 2)
    with pytest.raises(ValueError, match="class 7 has 0 samples, asked for all"):
        select(y, (7,), None)
