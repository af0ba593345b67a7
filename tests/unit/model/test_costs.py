"""What the parts of a model cost: the last layer and the output layer by their targets."""

import pytest

from megatron_glm.config.schema import Model, Objective
from megatron_glm.model.costs import layer_costs, target_share


def costs(num_ids=30_000, objective=None, **sizes):
    model = Model(**({"num_layers": 6, "hidden_size": 64, "num_attention_heads": 4} | sizes))
    return layer_costs(model, objective or Objective(), window=512, num_ids=num_ids)


def test_the_layers_between_cost_the_same_and_the_first_brings_the_embeddings():
    first, *between, _ = costs()
    assert len(between) == 4
    assert set(between) == {between[0]}
    assert between[0] < first < 1.05 * between[0]


def test_a_large_vocabulary_makes_the_last_layer_dear_and_a_small_one_makes_it_cheap():
    assert costs(num_ids=250_000)[-1] > 2 * costs()[1]
    assert costs(num_ids=128)[-1] < costs()[1]


def test_the_more_targets_the_more_the_last_layer_costs():
    long_spans = Objective(token=0.0, document=1.0)
    assert costs(objective=long_spans)[-1] > 2 * costs()[-1]


@pytest.mark.parametrize(
    ("objective", "share"),
    [
        # 100 tokens, 15 masked in 5 spans: 85 + 5 in part A, 15 + 5 in part B.
        (Objective(), 20 / 110),
        (Objective(token=0.0, document=1.0), 0.75),
        (Objective(token=0.5, sentence=0.5), (20 / 110 + 0.15) / 2),
    ],
)
def test_the_share_of_targets_follows_from_the_mixture(objective, share):
    assert target_share(objective) == pytest.approx(share)
