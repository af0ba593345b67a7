"""The loss scale goes on after a resume as if the run had never stopped."""

from types import SimpleNamespace

from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.training.engines.loss_scale import LossScale


def engine(power=16, window=3):
    scaler = DynamicLossScaler(2.0**power, window, 1, delayed_shift=1, consecutive_hysteresis=False)
    return SimpleNamespace(
        fp16_enabled=lambda: True, optimizer=SimpleNamespace(loss_scaler=scaler, overflow=False, rank=0)
    )


def steps(engine, overflows):
    """The scale after each of these steps."""
    scales = []
    for overflow in overflows:
        engine.optimizer.overflow = overflow
        if overflow:  # update_scale logs through torch.distributed, which is not there
            scaler = engine.optimizer.loss_scaler
            scaler.cur_scale, scaler.last_overflow_iter = max(scaler.cur_scale / 2, 1), scaler.cur_iter
            scaler.cur_iter += 1
        else:
            engine.optimizer.loss_scaler.update_scale(False)
        scales.append(LossScale(engine).value)
    return scales


@given(before=st.lists(st.booleans(), max_size=12), after=st.lists(st.booleans(), max_size=12))
def test_a_state_is_all_that_the_scale_depends_on(before, after):
    whole, resumed = engine(), engine(power=3)
    steps(whole, before)
    LossScale(resumed).load(LossScale(whole).state())
    assert steps(resumed, after) == steps(whole, after)


def test_a_checkpoint_of_another_precision_leaves_it_as_it_starts():
    fresh = engine()
    LossScale(fresh).load(None)
    assert LossScale(fresh).value == 65536.0


def test_without_fp16_there_is_no_scale_and_nothing_overflows():
    scale = LossScale(SimpleNamespace(fp16_enabled=lambda: False, optimizer=SimpleNamespace(overflow=True)))
    scale.load({"scale": 8.0, "steps": 1})
    assert (scale.value, scale.overflowed, scale.state()) == (1.0, False, None)
