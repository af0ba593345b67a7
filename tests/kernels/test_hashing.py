"""The hashes that key dropout: the same for ever, and without collisions that one could meet."""

import numpy as np
import pytest

from glm_kernels.dropout import DropoutKey, RowKeys, Site
from glm_kernels.hashing import hashed, token_keys


def test_hashes_are_frozen():
    # Runs in progress depend on them: a change here changes every mask on a GPU.
    assert hashed(0) == 0xE220A8397B1DCDAF - 2**64  # splitmix64's published first number
    assert DropoutKey(seed=1234, layer=5, site=Site.ATTENTION).philox_key() == -2042077939197055961
    assert token_keys(np.array([0, 7, 7, -1]), np.array([0, 0, 1, 0], np.int32)).tolist() == [
        -6411193824288604561,
        -5137267319001854395,
        4414019431610648415,
        6755974106381971767,
    ]


def test_every_token_of_a_large_row_has_a_key_of_its_own():
    sample = np.repeat(np.arange(1000), 600)
    token = np.tile(np.arange(600, dtype=np.int32), 1000)
    keys = token_keys(sample, token)
    assert keys.dtype == np.int64
    assert len(np.unique(keys)) == len(keys)
    assert len(np.unique(keys & 0xFFFFFFFF)) > 0.9998 * len(keys)  # of 32 random bits about 42 pairs are alike


def test_every_bit_of_a_key_is_as_often_set_as_not():
    keys = token_keys(np.arange(20_000), np.zeros(20_000, np.int32)).view(np.uint64)
    set_bits = (keys[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).mean(axis=0)
    assert np.abs(set_bits - 0.5).max() < 5 * 0.5 / np.sqrt(20_000)


def test_the_keys_of_a_site_differ_in_seed_layer_and_site():
    keys = {
        DropoutKey(seed, layer, site).philox_key() for seed in (0, 1, 2**63 - 1) for layer in range(48) for site in Site
    }
    assert len(keys) == 3 * 48 * len(Site)
    assert all(-(2**63) <= key < 2**63 for key in keys)


@pytest.mark.parametrize("padding", [0, 3])
def test_a_token_has_its_key_wherever_its_sample_stands(padding):
    first = RowKeys.from_lengths([5, 9], [3, 4], 7 + padding)
    second = RowKeys.from_lengths([9, 5], [4, 3], 7 + padding)
    assert first.token_key[:3].tolist() == second.token_key[4:7].tolist()
    assert first.token_key[3:7].tolist() == second.token_key[:4].tolist()
