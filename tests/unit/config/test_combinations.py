"""What does not go together is refused, with the nearest that does."""

import pytest

from megatron_glm.config.combinations import check_combinations
from megatron_glm.config.loading import config_from_tree
from megatron_glm.errors import ConfigError


def config(layers=4, **parallel):
    return config_from_tree(
        {
            "model": {"num_layers": layers, "hidden_size": 8, "num_attention_heads": 1},
            "tokenizer": {"path": "-"},
            "data": {"sources": [{"path": "-"}]},
            "optimizer": {"learning_rate": 1e-3},
            "train": {"output": "-", "steps": 1, "global_batch_size": 8, "micro_batch_size": 2},
            "parallel": parallel,
        }
    )


@pytest.mark.parametrize("stage", [2, 3])
def test_a_pipeline_goes_with_zero_0_and_1_only(stage):
    check_combinations(config(zero_stage=stage))
    for possible in (0, 1):
        check_combinations(config(zero_stage=possible, pipeline=2))
    with pytest.raises(ConfigError, match=f"zero_stage: {stage} with .* use parallel.zero_stage=1"):
        check_combinations(config(zero_stage=stage, pipeline=2))


def test_a_stage_has_a_layer():
    check_combinations(config(layers=4, pipeline=4))
    with pytest.raises(ConfigError, match=r"parallel\.pipeline: 5 stages for model\.num_layers 4.* at most 4"):
        check_combinations(config(layers=4, pipeline=5))


@pytest.mark.parametrize(
    ("parallel", "fix"),
    [({"zero_stage": 0}, "use parallel.zero_stage=1"), ({"pipeline": 2}, "parallel.pipeline=1 alone")],
)
def test_an_offloaded_optimizer_is_refused_where_it_would_not_be_right(parallel, fix):
    wanted = config(**parallel)
    check_combinations(wanted)
    offloaded = wanted.parallel.model_copy(update={"offload_optimizer": "cpu"})
    with pytest.raises(ConfigError, match=f"offload_optimizer: cpu.* {fix}"):
        check_combinations(wanted.model_copy(update={"parallel": offloaded}))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_offloaded_optimizer_goes_with_zero_1_to_3(stage):
    check_combinations(config(zero_stage=stage, offload_optimizer="cpu"))


@pytest.mark.parametrize("fused", ["apex", "auto"])
def test_an_offloaded_optimizer_is_not_apex_s(fused):
    wanted = config(offload_optimizer="cpu")
    wanted = wanted.model_copy(update={"optimizer": wanted.optimizer.model_copy(update={"fused": fused})})
    with pytest.raises(ConfigError, match=rf"optimizer\.fused {fused}: .* use optimizer\.fused=torch"):
        check_combinations(wanted)


def test_apex_s_optimizer_is_refused_where_its_count_of_updates_would_be_wrong():
    for stage, fused in ((2, "apex"), (3, "auto"), (3, "torch")):
        wanted = config(zero_stage=stage)
        chosen = wanted.optimizer.model_copy(update={"fused": fused})
        check_combinations(wanted.model_copy(update={"optimizer": chosen}))
    apex = wanted.optimizer.model_copy(update={"fused": "apex"})
    with pytest.raises(ConfigError, match=r"optimizer\.fused: apex with parallel.* use .*=torch, or .*zero_stage=2"):
        check_combinations(wanted.model_copy(update={"optimizer": apex}))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_without_master_weights_is_refused_with_the_nearest_possible_stage(precision):
    wanted = config(zero_stage=0)
    check_combinations(wanted)
    low = wanted.model_copy(update={"train": wanted.train.model_copy(update={"precision": precision})})
    with pytest.raises(ConfigError, match=r"parallel\.zero_stage: 0 .* use parallel\.zero_stage=1"):
        check_combinations(low)


def test_ranks_that_cannot_share_the_heads_are_refused_with_those_that_can():
    wanted = config(tensor=3)
    heads = wanted.model.model_copy(update={"hidden_size": 12, "num_attention_heads": 12})
    check_combinations(wanted.model_copy(update={"model": heads}))
    fewer = heads.model_copy(update={"num_attention_heads": 4})
    with pytest.raises(ConfigError, match=r"3 does not divide model\.num_attention_heads 4; allowed: \[1, 2, 4\]"):
        check_combinations(wanted.model_copy(update={"model": fewer}))


def with_attention(backend, **model):
    wanted = config()
    train = wanted.train.model_copy(update={"attention_backend": backend})
    return wanted.model_copy(update={"train": train, "model": wanted.model.model_copy(update=model)})


@pytest.mark.parametrize("backend", ["flash-varlen", "flex", "sdpa"])
def test_attention_without_keyed_dropout_is_refused_where_there_is_dropout(backend):
    check_combinations(with_attention(backend, attention_dropout=0.0))
    with pytest.raises(ConfigError, match=rf"{backend} has no keyed dropout.* is 0\.1; .* model\.attention_dropout=0"):
        check_combinations(with_attention(backend))


@pytest.mark.parametrize("backend", ["auto", "triton", "segments", "reference"])
def test_the_other_back_ends_have_dropout(backend):
    check_combinations(with_attention(backend))


def test_our_kernels_are_refused_for_heads_that_they_do_not_have():
    check_combinations(with_attention("triton", hidden_size=128))
    check_combinations(with_attention("auto", hidden_size=136))
    with pytest.raises(ConfigError, match=r"up to 128 features, and .* is 136; use auto"):
        check_combinations(with_attention("triton", hidden_size=136))


def test_the_rows_of_a_word_table_that_is_asked_for_are_shared():
    one = config(tensor=1)
    asked = one.model.model_copy(update={"vocab_size": 384, "num_attention_heads": 8})
    shared = one.model_copy(update={"model": asked})
    check_combinations(shared)
    check_combinations(shared.model_copy(update={"parallel": one.parallel.model_copy(update={"tensor": 2})}))
    odd = shared.model_copy(update={"model": asked.model_copy(update={"vocab_size": 383})})
    with pytest.raises(ConfigError, match=r"parallel\.tensor: 2 does not divide the 383 rows .*vocab_size to 384"):
        check_combinations(odd.model_copy(update={"parallel": one.parallel.model_copy(update={"tensor": 2})}))
