"""The learning rate of a step: schedule, overrides, second warm-up, and what a checkpoint keeps of them."""

import json

import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.training.control.steering import Steering
from megatron_glm.training.schedule import learning_rate


def config(rewarmup=0, rate=1.0, floor=0.1):
    return config_from_tree(
        {
            "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1},
            "tokenizer": {"path": "-"},
            "data": {"sources": [{"path": "-"}]},
            "optimizer": {"learning_rate": rate},
            "schedule": {"warmup_steps": 10, "floor": floor, "rewarmup_steps": rewarmup},
            "train": {"output": "-", "steps": 100, "global_batch_size": 1, "micro_batch_size": 1},
        }
    )


def schedule(step, **changes):
    settings = config(**changes)
    return learning_rate(settings.schedule, settings.optimizer.learning_rate, 100, step)


def test_alone_it_is_the_schedule():
    steering = Steering(config(), None, first_step=0)
    assert [steering.rate(step) for step in range(1, 101)] == [schedule(step) for step in range(1, 101)]


def test_overrides_are_as_if_the_configuration_said_so():
    steering = Steering(config(), None, first_step=0)
    steering.adopt({"learning_rate": 0.5, "floor": 0.3})
    assert [steering.rate(step) for step in (5, 50, 100)] == [
        pytest.approx(schedule(step, rate=0.5, floor=0.3)) for step in (5, 50, 100)
    ]
    steering.adopt({"learning_rate": None, "floor": None})
    assert steering.rate(50) == schedule(50)


def test_after_a_load_the_rate_rises_from_zero_to_the_schedule():
    steering = Steering(config(rewarmup=4), None, first_step=20)
    assert [steering.rate(step) / schedule(step) for step in range(21, 27)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_run_from_the_beginning_has_no_second_warm_up():
    assert Steering(config(rewarmup=4), None, first_step=0).rate(3) == schedule(3)


def saved(steering):
    return json.loads(json.dumps(steering.state()))


def test_a_restart_in_the_second_warm_up_continues_it():
    first = Steering(config(rewarmup=4), None, first_step=20)
    again = Steering(config(rewarmup=4), saved(first), first_step=22)
    assert [again.rate(step) for step in (23, 24, 25)] == [first.rate(step) for step in (23, 24, 25)]


def test_another_number_of_steps_begins_a_new_one_and_none_ends_it():
    first = Steering(config(rewarmup=4), None, first_step=20)
    assert Steering(config(rewarmup=8), saved(first), first_step=22).rate(23) == pytest.approx(schedule(23) / 8)
    assert Steering(config(), saved(first), first_step=22).rate(23) == schedule(23)


@pytest.mark.parametrize(("loaded", "back_to"), [(20, 20), (20, 12), (0, 12)])
def test_going_back_is_a_load_like_any_other_but_for_the_overrides(loaded, back_to):
    before = Steering(config(rewarmup=4), None, first_step=0)
    running = Steering(config(rewarmup=4), saved(before), first_step=loaded)
    running.adopt({"learning_rate": 0.5, "floor": None})
    running.go_back(saved(before), first_step=back_to)
    resumed = Steering(config(rewarmup=4), saved(before), first_step=back_to)
    assert running.overrides.learning_rate == 0.5
    steps = range(back_to + 1, 40)
    assert [running.rate(step) for step in steps] == pytest.approx([resumed.rate(step) / 2 for step in steps])
    assert running.rate(back_to + 1) > 0


def test_a_resume_goes_on_with_the_overrides():
    first = Steering(config(), None, first_step=0)
    first.adopt({"learning_rate": 0.5, "floor": None})
    assert Steering(config(), saved(first), first_step=20).rate(50) == first.rate(50)
