"""The type of the ids is Megatron's choice."""

import numpy as np
import pytest

from megatron_glm.data.pair_format import dtype_for

UINT16, INT32 = np.dtype(np.uint16), np.dtype(np.int32)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1, UINT16), (65_499, UINT16), (65_500, INT32), (65_536, INT32)])
def test_type_changes_where_megatron_changes_it(vocab_size, dtype):
    assert dtype_for(vocab_size) == dtype
