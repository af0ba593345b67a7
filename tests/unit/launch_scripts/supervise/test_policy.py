"""What follows when a launcher has ended."""

import pytest

from launch_scripts.supervise.policy import Ended, Finish, Restart, decide, exit_code


def finish(decision):
    """The exit code with which it is over."""
    assert isinstance(decision, Finish)
    return decision.code


def after(code=1, *, well=False, wish=None, stop_file=False, progress=False, fruitless=0):
    ended = Ended(code=code, well=well, wish=wish, stop_file=stop_file, progress=progress)
    return decide(ended, fruitless=fruitless, restarts=3, backoff=5.0)


@pytest.mark.parametrize("code", [0, 1, -15, 247])
def test_a_run_that_says_it_ended_well_is_not_started_again_whatever_its_launcher_says(code):
    assert finish(after(code, well=True)) == 0
    assert finish(after(code, well=True, wish=15)) == 0


@pytest.mark.parametrize("code", [0, 1, 3, 4, -9, 247, 137])
def test_any_other_end_is_a_restart(code):
    assert after(code) == Restart(number=1, pause=5.0)


def test_a_mistake_of_the_user_is_not_tried_again():
    assert finish(after(2)) == 2


def test_a_stop_that_was_wished_is_not_undone():
    assert finish(after(1, wish=15)) == 143
    assert finish(after(1, stop_file=True)) == 1


def test_pauses_double_and_restarts_without_a_newer_checkpoint_are_limited():
    assert [after(fruitless=k) for k in range(3)] == [Restart(1, 5.0), Restart(2, 10.0), Restart(3, 20.0)]
    assert finish(after(fruitless=3)) == 1
    assert finish(after(0, fruitless=3)) == 1  # a run that is not done has not gone well
    assert after(fruitless=3, progress=True) == Restart(1, 5.0)


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        ({"code": 2}, "`error: …` says why"),
        ({"stop_file": True}, "the file `stop` lies in its output"),
        ({"wish": 15}, "its end was wished"),
        ({"fruitless": 3}, "4 starts in a row have led to no newer checkpoint (--restarts 3)"),
    ],
)
def test_whoever_reads_the_log_is_told_why_it_is_over(ended, why):
    assert why in after(**ended).why


def test_a_pause_is_never_longer_than_five_minutes():
    ended = Ended(code=1, well=False, wish=None, stop_file=False, progress=False)
    assert decide(ended, fruitless=10, restarts=99, backoff=5.0) == Restart(11, 300.0)


@pytest.mark.parametrize(
    ("code", "shown"), [(0, 0), (2, 2), (137, 137), (-9, 137), (247, 137), (241, 143), (-15, 143), (255, 255)]
)
def test_a_signal_is_told_as_the_shell_tells_it(code, shown):
    assert exit_code(code) == shown
