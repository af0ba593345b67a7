"""How the processes of a run meet, and what they say if they do not."""

import pytest

from megatron_glm.training.launchers import free_port
from tests.distributed.ranks import run_ranks
from tests.distributed.training import processes_cases as cases

pytestmark = pytest.mark.distributed


@pytest.fixture
def port():
    return free_port()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_stays_alone_says_where_it_waited(rank, port):
    (message,) = run_ranks(1, cases.alone_of_two, rank, port)
    assert message.startswith(f"rank {rank}: the processes do not meet at 127.0.0.1:{port} (")
    assert message.endswith("all machines reach each other (docs/launching.md)")
    assert "\n" not in message


def test_a_process_without_a_gpu_says_so_itself_since_the_others_have_theirs():
    (message,) = run_ranks(1, cases.ninth_of_eight_gpus)
    assert message.startswith("rank 17: process 8 of its node has no GPU: it sees 8; start fewer processes with")


def test_deepspeed_must_compute_where_torch_does():
    (message,) = run_ranks(1, cases.accelerator_of_another_device)
    assert message == (
        "rank 0: DeepSpeed computes on 'cpu' where torch sees 'cuda'; unset DS_ACCELERATOR, and to train on the"
        " processor of a machine with GPUs set CUDA_VISIBLE_DEVICES="
    )
