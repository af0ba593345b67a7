"""The embedding sum against plain indexing."""

import torch

from glm_kernels.embedding import embedding
from glm_kernels.embedding.reference import embedding_reference


def test_outputs_and_gradients_are_those_of_plain_indexing():
    tables = [torch.randn(rows, 8, dtype=torch.float64, requires_grad=True) for rows in (20, 11, 11)]
    ids = [torch.randint(0, rows, (50,)) for rows in (20, 11, 3)]  # few block positions: hot rows
    upstream = torch.randn(50, 8, dtype=torch.float64)
    got, expected = embedding(*ids, *tables), embedding_reference(*ids, *tables)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    for a, b in zip(
        torch.autograd.grad(got, tables, upstream), torch.autograd.grad(expected, tables, upstream), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
