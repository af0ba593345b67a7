"""What cannot be run is refused before any process has met another."""

import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.errors import ConfigError
from megatron_glm.training import pretraining


@pytest.fixture
def start(monkeypatch):
    """Begins a run in one of some processes; it is a failure if they come to meet."""

    def run(processes, *, deepspeed=None, micro=2, precision="fp32", **parallel):
        place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1"}
        for name, value in place.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(pretraining, "distributed_processes", lambda **_: pytest.fail("the processes would meet"))
        train = {"output": "-", "steps": 1, "global_batch_size": 8, "micro_batch_size": micro, "precision": precision}
        config = config_from_tree(
            {
                "model": {"num_layers": 4, "hidden_size": 8, "num_attention_heads": 2},
                "tokenizer": {"path": "-"},
                "data": {"sources": [{"path": "-"}]},
                "optimizer": {"learning_rate": 1e-3},
                "train": train,
                "parallel": parallel,
                "deepspeed": deepspeed or {},
            }
        )
        pretraining.pretrain(config)

    return run


@pytest.mark.parametrize(
    ("processes", "settings", "message"),
    [
        (3, {"tensor": 2}, "does not divide 3 processes; start 2 or 4"),
        (2, {"tensor": 2, "pipeline": 2}, "does not divide 2 processes; start at least 4"),
        (3, {}, "is not micro_batch_size × accumulation × data parallel"),
        (4, {"tensor": 4}, "does not divide model.num_attention_heads 2; allowed: \\[1, 2\\]"),
        (2, {"pipeline": 2, "zero_stage": 2}, "use parallel.zero_stage=1"),
        (5, {"pipeline": 5}, "set at most 4"),
        (2, {"pipeline": 2, "stage_layers": [4]}, "give one number for each stage"),
        (1, {"zero_stage": 0, "precision": "bf16"}, "use parallel.zero_stage=1"),
        (1, {"zero_stage": 0, "offload_optimizer": "cpu"}, "use parallel.zero_stage=1"),
        (1, {"deepspeed": {"fp16": {"enabled": True}}}, "is decided by train.precision; set it there"),
    ],
)
def test_it_is_told_with_the_nearest_possible_one(start, processes, settings, message):
    with pytest.raises(ConfigError, match=message):
        start(processes, **settings)


def test_what_can_be_run_goes_on_to_meet(start):
    with pytest.raises(pytest.fail.Exception, match="would meet"):
        start(4, tensor=2, pipeline=2, sequence=True)
