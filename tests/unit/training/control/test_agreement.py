"""What one rank knows becomes what all ranks do, at the same step."""

from dataclasses import replace

import pytest
import torch

from megatron_glm.training.control.agreement import Agreement
from megatron_glm.training.control.stopping import StopWished
from megatron_glm.training.engines.exact_loss import Counts


class TwoRanks:
    """This process and another, whose values the test gives."""

    rank, size = 0, 2

    def __init__(self, others):
        self.others = list(others)

    def gather(self, value):
        return [value, self.others.pop(0)]


@pytest.fixture
def agree(monkeypatch):
    """An agreement of two ranks; the other one has the same counts, and these wishes and news at each
    meeting, and these values to tell."""

    def make(*, wish=None, news=None, other=((0, 0),), others=()):
        def both(self, numbers, device, group, *, copies):
            assert group is None
            totals = [mine + theirs for mine, theirs in zip(numbers, next(meetings), strict=True)]
            return replace(self, tokens=2 * self.tokens // copies), totals

        meetings = iter(other)
        monkeypatch.setattr(Counts, "with_totals", both)
        adopted, met = [], []
        agreement = Agreement(
            TwoRanks(others),
            device=torch.device("cpu"),
            copies=2,
            wish=lambda: wish,
            news=lambda: news,
            adopt=adopted.append,
            reached=lambda: met.append(True),
        )
        return agreement, adopted, met

    return make


def test_where_nobody_wishes_anything_a_step_begins_with_the_counts_of_all(agree):
    agreement, adopted, met = agree()
    assert agreement.start_step(Counts((1, 2, 3), tokens=9)).tokens == 9
    assert (adopted, met) == ([], [True])


def test_the_wish_of_any_rank_stops_all_before_the_step(agree):
    agreement, adopted, met = agree(other=[(1, 0)], others=["SIGTERM to rank 1 on node1"])
    with pytest.raises(StopWished, match="SIGTERM to rank 1 on node1"):
        agreement.start_step(Counts())
    assert (adopted, met) == ([], [True])


def test_of_several_wishes_the_first_rank_s_is_told(agree):
    agreement, _, _ = agree(wish="mine", other=[(1, 0)], others=["another"])
    with pytest.raises(StopWished, match="mine"):
        agreement.start_step(Counts())


def test_news_of_the_first_rank_are_adopted_by_all_at_once(agree):
    agreement, adopted, _ = agree(news={"floor": 0.2}, others=[None])
    agreement.start_step(Counts())
    assert adopted == [{"floor": 0.2}]


def test_a_validation_looks_before_every_batch(agree):
    agreement, _, met = agree(others=["SIGINT to rank 1 on node1"], other=[(0, 0), (0, 0), (1, 0)])
    seen = []
    with pytest.raises(StopWished, match="SIGINT"):
        list(map(seen.append, agreement.between("abcd")))
    assert seen == ["a", "b"]
    assert len(met) == 3
