import pytest
import torch

from deqbook.data import parallel_pairs, separate_parallel


def cloud(n, d, seed=0):
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def pairs_by_full_matrix(X, tol):
    unit = X / X.norm(dim=1, keepdim=True)
    return torch.triu((unit @ unit.T).abs() > 1 - tol, diagonal=1).nonzero()


def test_finds_multiples_opposites_and_copies_across_blocks():
    X = cloud(300, 20)
    X[250] = 3 * X[7]
    X[40] = -0.1 * X[299]
    X[120] = X[121]
    for block in (1, 16, 512):
        assert parallel_pairs(X, block=block).tolist() == [[7, 250], [40, 299], [120, 121]]


def test_none_in_general_position():
    pairs = parallel_pairs(cloud(300, 20))
    assert pairs.shape == (0, 2)
    assert parallel_pairs(cloud(1, 20)).shape == (0, 2)


@pytest.mark.parametrize("tol", [1e-9, 1e-4, 1e-2, 0.3])
@pytest.mark.parametrize("d", [2, 3, 6])
def test_agrees_with_the_full_matrix(tol, d):
    X = cloud(200, d, seed=d)
    X[50:60] = X[:10] * 2 + 1e-3 * cloud(10, d, seed=9)
    expected = pairs_by_full_matrix(X, tol)
    assert torch.equal(parallel_pairs(X, tol, block=32), expected)
    if tol >= 1e-4:
        assert len(expected) > 0  # else the comparison would be of nothing with nothing


def test_tolerance_is_a_threshold_on_the_cosine():
    angle = torch.tensor(1e-3, dtype=torch.float64)  # 1 - cos = 5e-7
    X = torch.stack((torch.tensor([1.0, 0.0]).double(), torch.stack((angle.cos(), angle.sin()))))
    assert len(parallel_pairs(X, 6e-7)) == 1
    assert len(parallel_pairs(X, 4e-7)) == 0


def test_images_and_single_precision_are_accepted():
    X = cloud(10, 12).float().reshape(10, 1, 3, 4)
    X[9] = 0.3 * X[2]
    assert parallel_pairs(X).tolist() == [[2, 9]]


def test_separation_moves_only_the_later_samples_and_keeps_norms():
    X = cloud(30, 10)
    X[20] = -2 * X[3]
    X[25] = X[3]
    before = X.clone()
    out, changed = separate_parallel(X, noise=1e-2)
    assert torch.equal(X, before)
    assert changed == (20, 25)
    assert len(parallel_pairs(out)) == 0
    assert torch.allclose(out.norm(dim=1), X.norm(dim=1), rtol=1e-12, atol=0)
    rest = [k for k in range(30) if k not in changed]
    assert torch.equal(out[rest], X[rest])
    for k in changed:
        assert 1e-3 < (out[k] - X[k]).norm() / X[k].norm() < 5e-2


def test_separation_depends_on_the_seed_alone():
    X = cloud(5, 10)
    X[4] = X[0]
    first, again = separate_parallel(X, seed=1).x, separate_parallel(X, seed=1).x
    assert torch.equal(first, again)
    assert not torch.equal(first, separate_parallel(X, seed=2).x)


def test_nothing_to_do_returns_the_same_samples():
    X = cloud(10, 5)
    assert separate_parallel(X).x is X
    assert separate_parallel(X).changed == ()


def test_images_keep_their_shape():
    X = cloud(6, 12).reshape(6, 3, 4)
    X[5] = X[0]
    out = separate_parallel(X)
    assert out.x.shape == X.shape
    assert out.changed == (5,)


def test_hopeless_cases_say_why():
    with pytest.raises(ValueError, match=r"still parallel after 5 rounds.*d = 1 "):
        separate_parallel(torch.ones(3, 1))
    with pytest.raises(ValueError, match=r"noise 1e-05 opens.*use noise above 4\.5e-05"):
        separate_parallel(cloud(3, 4), noise=1e-5)
    with pytest.raises(ValueError, match=r"rows \[1\] of X have norm zero"):
        parallel_pairs(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    with pytest.raises(ValueError, match="strictly between 0 and 1, got 2"):
        parallel_pairs(cloud(3, 4), tol=2)
    with pytest.raises(ValueError, match=r"one sample per row.*\(4,\)"):
        parallel_pairs(torch.ones(4))
