"""The groups of a layout under the names by which DeepSpeed asks for them."""

from __future__ import annotations

from torch.distributed import ProcessGroup

from megatron_glm.parallel.groups import Groups


class ModelParallelUnit:
    """What deepspeed.initialize takes as `mpu`: the ranks of a model are those of its tensor group."""

    def __init__(self, groups: Groups):
        self._groups = groups

    def get_data_parallel_group(self) -> ProcessGroup:
        return self._groups.data

    def get_data_parallel_rank(self) -> int:
        return self._groups.place.data

    def get_data_parallel_world_size(self) -> int:
        return self._groups.layout.data

    def get_model_parallel_group(self) -> ProcessGroup:
        return self._groups.tensor

    def get_model_parallel_rank(self) -> int:
        return self._groups.place.tensor

    def get_model_parallel_world_size(self) -> int:
        return self._groups.layout.tensor

    # DeepSpeed looks for the first of these, and then calls all three.
    get_tensor_model_parallel_rank = get_model_parallel_rank
    get_tensor_model_parallel_world_size = get_model_parallel_world_size
    get_tensor_model_parallel_group = get_model_parallel_group
