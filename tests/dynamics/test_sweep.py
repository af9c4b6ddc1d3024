"""Many runs, by any executor."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
import torch
from small_runs import lost_case, one_case, same

from deqbook.dynamics import (
    LeftRegion,
    Trajectory,
    sweep,
)


def test_a_sweep_is_the_same_with_any_executor() -> None:
    cases = (3, 1, 2)
    torch.set_num_threads(2)
    plain = sweep(one_case, iter(cases))
    assert torch.get_num_threads() == 2  # put back
    assert list(plain) == list(cases)
    same(plain[2], one_alone(2))
    assert not np.array_equal(plain[1].predictions, plain[2].predictions)
    with ThreadPoolExecutor(2) as pool:
        threads = sweep(one_case, cases, executor=pool)
    # "spawn": a forked child of a process that has used torch's threads can hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        processes = sweep(one_case, cases, executor=pool)
        with pytest.raises(LeftRegion, match=r"^epoch 1: no equilibrium was found") as caught:
            sweep(lost_case, (0,), executor=pool)
    assert len(caught.value.trajectory) == 1
    for other in (threads, processes):
        assert list(other) == list(cases)
        for case in cases:
            same(other[case], plain[case])


def one_alone(seed: int) -> Trajectory:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return one_case(seed)
    finally:
        torch.set_num_threads(threads)
