"""The schedule of a step's gradients: every micro-batch once each way, in order, then one reduction, and no update."""

import pytest
from deepspeed.runtime.pipe import schedule

from megatron_glm.training.engines.pipeline_schedule import GradientSchedule


def names(micro_batches, stages, stage):
    made = GradientSchedule(micro_batches, stages, stage)
    return [instruction for step in made for instruction in step]


@pytest.mark.parametrize(("micro_batches", "stages"), [(1, 2), (4, 2), (3, 4), (8, 4)])
def test_a_stage_runs_each_micro_batch_and_reduces_once_at_the_end(micro_batches, stages):
    for stage in range(stages):
        kinds = [type(instruction) for instruction in names(micro_batches, stages, stage)]
        assert kinds.count(schedule.ForwardPass) == kinds.count(schedule.BackwardPass) == micro_batches
        assert kinds[-2:] == [schedule.ReduceTiedGrads, schedule.ReduceGrads]
        assert kinds.count(schedule.ReduceGrads) == 1
        assert schedule.OptimizerStep not in kinds


def test_no_stage_holds_more_micro_batches_than_stages_follow_it():
    for stage in range(4):
        held = largest = 0
        for instruction in names(8, 4, stage):
            held += isinstance(instruction, schedule.ForwardPass) - isinstance(instruction, schedule.BackwardPass)
            largest = max(largest, held)
        assert largest == 4 - stage
