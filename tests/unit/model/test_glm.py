"""The model on flat rows: what its outputs depend on, and what they do not."""

from dataclasses import dataclass

import pytest
import torch

from glm_kernels.attention import Visibility
from glm_kernels.dropout import RowKeys
from megatron_glm.config.schema import Model
from megatron_glm.model.glm import GLM

NUM_IDS = 150  # of 256 rows
SIZES = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "max_positions": 40}
DRY = Model(**SIZES, hidden_dropout=0.0, attention_dropout=0.0)
WET = Model(**SIZES, hidden_dropout=0.3, attention_dropout=0.3)


@dataclass
class Tokens:
    """Random samples with their segments: [(part A, end), …] by sample."""

    segments: list
    ids: torch.Tensor
    positions: torch.Tensor
    blocks: torch.Tensor


def sample(index, *shape):
    """Sample `index` with segments (length of A, length of B)."""
    generator = torch.Generator().manual_seed(index)
    segments, start = [], 0
    for part_a, part_b in shape:
        segments.append((start, part_a, start + part_a + part_b))
        start += part_a + part_b
    draw = [torch.randint(0, high, (start,), generator=generator) for high in (NUM_IDS, 41, 41)]
    return Tokens(segments, *draw)


SAMPLES = {3: sample(3, (7, 5)), 11: sample(11, (4, 6), (9, 3)), 20: sample(20, (1, 8))}


def forward(model, order, padding=0, keep=lambda length: torch.arange(length), seed=5):
    """Hidden states of each sample, by its index."""
    samples = [SAMPLES[index] for index in order]
    lengths = [len(s.ids) for s in samples]
    T = sum(lengths) + padding

    def row(name):
        return torch.cat([*(getattr(s, name) for s in samples), torch.zeros(padding, dtype=torch.int64)])

    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    segments = [(b + o, a, e + o) for s, o in zip(samples, starts, strict=True) for b, a, e in s.segments]
    hidden = model(
        row("ids"),
        row("positions"),
        row("blocks"),
        Visibility.from_segments(segments, T),
        keep(T - padding),
        RowKeys.from_lengths(order, lengths, T),
        seed,
    )
    return dict(zip(order, hidden.split(lengths), strict=True)) if len(hidden) == T - padding else hidden


@pytest.mark.parametrize("config", [DRY, WET], ids=["without dropout", "with dropout"])
def test_a_sample_does_not_depend_on_the_row_it_stands_in(config):
    model = GLM(config, num_ids=NUM_IDS, seed=1)
    packed, other = forward(model, [3, 11, 20]), forward(model, [20, 3, 11], padding=9)
    for index in SAMPLES:
        alone = forward(model, [index])[index]
        torch.testing.assert_close(packed[index], alone, rtol=0, atol=2e-6)
        torch.testing.assert_close(other[index], alone, rtol=0, atol=2e-6)


def test_dropout_acts_in_training_only_and_follows_its_seed():
    model = GLM(WET, num_ids=NUM_IDS, seed=1)
    once, again, reseeded = (forward(model, [3], seed=seed)[3] for seed in (5, 5, 6))
    assert torch.equal(once, again)
    assert not torch.allclose(once, reseeded, atol=0.1)
    dry = GLM(DRY, num_ids=NUM_IDS, seed=1)
    torch.testing.assert_close(forward(model.eval(), [3])[3], forward(dry, [3])[3])


def test_training_with_dropout_asks_for_its_keys():
    model = GLM(WET, num_ids=NUM_IDS, seed=1)
    ids = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"attention_dropout 0\.3 needs row_keys"):
        model(ids, ids, ids, Visibility.from_segments([(0, 2, 4)], 4), ids)


def test_a_step_leaves_torchs_generator_alone():
    model = GLM(WET, num_ids=NUM_IDS, seed=1, recompute="full")
    state = torch.get_rng_state()
    forward(model, [3, 11])[3].sum().backward()
    assert torch.equal(state, torch.get_rng_state())


def gradients(model):
    model.zero_grad()
    hidden = torch.cat(list(forward(model, [3, 11, 20], padding=4).values()))
    model.token_loss(hidden, torch.arange(len(hidden)) % NUM_IDS).sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_gives_the_same_gradients_bit_for_bit(recompute):
    kept = gradients(GLM(WET, num_ids=NUM_IDS, seed=1))
    recomputed = gradients(GLM(WET, num_ids=NUM_IDS, seed=1, recompute=recompute))
    assert all(torch.equal(kept[name], recomputed[name]) for name in kept)


def test_the_more_is_recomputed_the_less_is_kept():
    def kept(recompute):
        sizes = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: (sizes.setdefault((x.data_ptr(), x.numel()), x.numel()), x)[1], lambda x: x
        ):
            forward(GLM(WET, num_ids=NUM_IDS, seed=1, recompute=recompute), [3, 11, 20])
        return sum(sizes.values())

    assert kept("none") > kept("selective") > kept("full")


def test_padded_rows_of_the_vocabulary_take_no_part():
    model = GLM(DRY, num_ids=NUM_IDS, seed=1)
    table = model.word_embeddings.weight
    assert table.shape[0] == 256
    before = gradients(model)
    with torch.no_grad():
        table[NUM_IDS:] = 100.0
    after = gradients(model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not after["word_embeddings.weight"][NUM_IDS:].any()
    assert model.logits(torch.zeros(3, 32)).shape == (3, NUM_IDS)


def test_the_loss_is_the_cross_entropy_of_the_logits():
    model = GLM(DRY, num_ids=NUM_IDS, seed=1)
    hidden, targets = torch.randn(6, 32), torch.arange(6)
    expected = torch.nn.functional.cross_entropy(model.logits(hidden), targets, reduction="none")
    torch.testing.assert_close(model.token_loss(hidden, targets), expected)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("config", [DRY, WET], ids=["without dropout", "with dropout"])
def test_the_hidden_states_asked_for_and_their_gradients_are_those_of_the_whole_row(config, recompute):
    model = GLM(config, num_ids=NUM_IDS, seed=1, recompute=recompute)
    places, upstream = torch.tensor([8, 2, 30]), torch.randn(3, config.hidden_size)

    def gradients(hidden):
        return torch.autograd.grad((hidden * upstream).sum(), list(model.parameters()))

    chosen = forward(model, [3, 11], keep=lambda length: places)
    everything = torch.cat(list(forward(model, [3, 11]).values()))[places]
    torch.testing.assert_close(chosen, everything)
    for got, expected in zip(gradients(chosen), gradients(everything), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))


def test_the_last_layer_goes_on_with_the_places_asked_for_only():
    model = GLM(DRY, num_ids=NUM_IDS, seed=1)
    rows = []
    for layer in model.transformer.layers:
        layer.mlp.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    forward(model, [3, 11], keep=lambda length: torch.tensor([8, 2, 30]))
    assert rows == [34, 3]


def test_a_row_of_padding_alone_gives_zero_gradients_to_every_parameter():
    model = GLM(WET, num_ids=NUM_IDS, seed=1)
    ids, none = torch.zeros(64, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    visibility, keys = Visibility.from_segments([], 64), RowKeys.from_lengths([], [], 64)
    model.token_loss(model(ids, ids, ids, visibility, none, keys, 5), none).sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_bf16_follows_fp32():
    exact = GLM(WET, num_ids=NUM_IDS, seed=1)
    rounded = GLM(WET, num_ids=NUM_IDS, seed=1).to(torch.bfloat16)
    expected, hidden = forward(exact, [3, 11, 20]), forward(rounded, [3, 11, 20])
    for index in SAMPLES:
        assert hidden[index].dtype == torch.bfloat16
        torch.testing.assert_close(hidden[index].float(), expected[index], rtol=0, atol=0.08)
    nll = rounded.token_loss(hidden[3], torch.arange(12))
    assert nll.dtype == torch.float32
    torch.testing.assert_close(nll, exact.token_loss(expected[3], torch.arange(12)), rtol=0, atol=0.02)
