import dataclasses

import numpy as np
import pytest
import torch

from deqbook.data import DataError, normalise
from deqbook.data.dataset import assemble

RNG = np.random.default_rng(3)


def made(x, y, classes, **options):
    settings = {"norm": "unit", "dtype": torch.float64, "flatten": True, "seed": 0} | options
    test = (RNG.integers(1, 255, (3, 4, 4), dtype=np.uint8), y[:3])
    return assemble("made", (x, y), test, classes, **settings)


@pytest.fixture
def pictures():
    return np.random.default_rng(1).integers(1, 120, (8, 4, 4), dtype=np.uint8)


LABELS = np.array([3, 5, 3, 5, 3, 5, 3, 5], dtype=np.uint8)
PAIR = [(3, "three"), (5, "five")]


def test_two_classes_become_signs_whatever_their_numbers(pictures):
    assert made(pictures, LABELS, PAIR).y_train.tolist() == [-1, 1] * 4


def test_stray_labels_are_refused(pictures):
    with pytest.raises(DataError, match=r"labels \[3\] are not among the classes \[4, 5\]"):
        made(pictures, LABELS, [(4, "four"), (5, "five")])


def test_parallel_training_samples_get_noise_and_are_listed(pictures):
    pictures[6] = 2 * pictures[1]
    data = made(pictures, LABELS, PAIR)
    assert data.perturbed == (6,)
    assert "noise on 1 parallel samples" in repr(data)
    cosine = data.x_train[1] @ data.x_train[6]
    assert 1e-9 < 1 - cosine < 1e-4
    assert (data.x_train.norm(dim=1) - 1).abs().max() < 1e-12
    assert torch.equal(data.x_train, made(pictures, LABELS, PAIR).x_train)
    assert not torch.equal(data.x_train, made(pictures, LABELS, PAIR, seed=1).x_train)


def test_without_norm_parallel_pixels_are_left_alone(pictures):
    pictures[6] = 2 * pictures[1]
    data = made(pictures, LABELS, PAIR, norm=None)
    assert data.perturbed == ()
    assert torch.equal(data.x_train[6], 2 * data.x_train[1])


def test_zero_pictures_are_named(pictures):
    pictures[[2, 5]] = 0
    with pytest.raises(ValueError, match=r"2 of 8 samples in the training split of made.*2, 5;"):
        made(pictures, LABELS, PAIR)
    assert made(pictures, LABELS, PAIR, norm=None).x_train[2].sum() == 0


def test_colour_pictures_become_channel_first():
    x = np.zeros((1, 2, 2, 3), np.uint8)
    x[0, 0, 1] = (255, 51, 0)
    data = assemble(
        "made",
        (x, LABELS[:1]),
        (x, LABELS[:1]),
        PAIR,
        norm=None,
        dtype=torch.float64,
        flatten=False,
        seed=0,
    )
    assert data.x_train.shape == (1, 3, 2, 2)
    assert data.x_train[0, :, 0, 1].tolist() == [1.0, 0.2, 0.0]


def test_normalise_keeps_direction_and_shape():
    x = torch.tensor([[[3.0, 0.0], [0.0, 4.0]]])
    assert torch.allclose(normalise(x, "unit"), x / 5, rtol=0, atol=1e-7)
    assert torch.allclose(normalise(x, "sqrt_d"), x / 5 * 2, rtol=0, atol=1e-7)
    assert normalise(x, None) is x


def test_a_dataset_cannot_be_reassigned(pictures):
    with pytest.raises(dataclasses.FrozenInstanceError):
        made(pictures, LABELS, PAIR).name = "other"
