"""Choosing the next token."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from megatron_glm.errors import UserError
from megatron_glm.generation.sampling import Sampler, Sampling

SCORES = torch.log(torch.tensor([0.1, 0.4, 0.2, 0.3]))


def test_temperature_zero_takes_the_best_token():
    assert Sampler(Sampling())(SCORES) == 1


def test_draws_follow_the_probabilities():
    sampler = Sampler(Sampling(temperature=1.0))
    counts = np.bincount([sampler(SCORES) for _ in range(2000)], minlength=4)
    assert chisquare(counts, [200, 800, 400, 600]).pvalue > 1e-4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"temperature": 1.0}, [0.1, 0.4, 0.2, 0.3]),
        ({"temperature": 0.5}, [1 / 30, 16 / 30, 4 / 30, 9 / 30]),
        ({"temperature": 1e-30}, [0, 1, 0, 0]),
        ({"temperature": 1.0, "top_k": 1}, [0, 1, 0, 0]),
        ({"temperature": 1.0, "top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"temperature": 1.0, "top_k": 99}, [0.1, 0.4, 0.2, 0.3]),
        ({"temperature": 1.0, "top_p": 1e-9}, [0, 1, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.39}, [0, 1, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.69}, [0, 4 / 7, 0, 3 / 7]),
        ({"temperature": 1.0, "top_p": 1.0}, [0.1, 0.4, 0.2, 0.3]),
        ({"temperature": 1.0, "top_k": 3, "top_p": 0.75}, [0, 4 / 7, 0, 3 / 7]),
    ],
)
def test_probabilities_are_cut_and_renormalised(options, expected):
    probabilities = Sampler(Sampling(**options)).probabilities(SCORES)
    torch.testing.assert_close(probabilities, torch.tensor(expected, dtype=torch.float32))


def test_a_forbidden_token_is_never_drawn():
    scores = SCORES.clone()
    scores[1] = -torch.inf
    sampler = Sampler(Sampling(temperature=100.0))
    assert {sampler(scores) for _ in range(200)} == {0, 2, 3}


def test_equal_seeds_give_equal_draws():
    draws = [[Sampler(Sampling(1.0, seed=seed))(SCORES) for _ in range(3)] for seed in (4, 4)]
    assert draws[0] == draws[1]
    sampler, other = Sampler(Sampling(1.0, seed=4)), Sampler(Sampling(1.0, seed=5))
    assert [sampler(SCORES) for _ in range(30)] != [other(SCORES) for _ in range(30)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature: -1.0 is not allowed; 0 .greedy. or a positive number"),
        ({"temperature": float("nan")}, "temperature: nan"),
        ({"temperature": float("inf")}, "temperature: inf"),
        ({"temperature": 1.0, "top_k": 0}, "top_k: 0 is not allowed; at least 1"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p: 0.0 is not allowed; above 0, at most 1"),
        ({"temperature": 1.0, "top_p": 1.5}, "top_p: 1.5"),
        ({"seed": -1}, "seed: -1"),
        ({"top_k": 5}, "no effect; set it to 1"),
        ({"top_p": 0.5}, "no effect"),
    ],
)
def test_refuses_values_out_of_range_or_without_effect(options, message):
    with pytest.raises(UserError, match=message):
        Sampling(**options)
