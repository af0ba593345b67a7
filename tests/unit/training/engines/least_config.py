"""The configuration that tests of engines vary: what has no default, at its smallest."""

from megatron_glm.config.loading import config_from_tree


def least_config(*, hidden_size=8, parallel=(), **train):
    """Settings of `train` by name; `parallel` may be a section of its own."""
    return config_from_tree(
        {
            "model": {"num_layers": 1, "hidden_size": hidden_size, "num_attention_heads": 2},
            "tokenizer": {"path": "-"},
            "data": {"sources": [{"path": "-"}]},
            "optimizer": {"learning_rate": 1e-3},
            "train": {"output": "-", "steps": 9, "global_batch_size": 8, "micro_batch_size": 2} | train,
            "parallel": dict(parallel),
        }
    )
