"""The plan of what is sent, where it can be told by hand; the distributed tests compare it with what is sent."""

import subprocess
import sys
from collections import Counter

import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.parallel.layout import Layout
from megatron_glm.planning.communication import RowSize, step_messages
from megatron_glm.planning.messages import Messages, bytes_sent
from megatron_glm.planning.typical_step import sent_per_step

H, LAYERS, T, N = 64, 6, 512, 100
TH, NH = 4 * T * H, 4 * N * H
ROW = RowSize(T, N)
ALL = (range(LAYERS),)  # one stage has all layers


def config(**changes):
    parallel = {key: changes.pop(key) for key in ("tensor", "pipeline", "sequence", "zero_stage") if key in changes}
    return config_from_tree(
        {
            "model": {"num_layers": LAYERS, "hidden_size": H, "num_attention_heads": 4, "max_positions": 63},
            "tokenizer": {"path": "-"},
            "data": {"sources": [{"path": "-"}], "window": 512},
            "objective": {"token": 0.4, "document": 0.6},
            "optimizer": {"learning_rate": 1e-3},
            "train": {"output": "-", "steps": 9, "global_batch_size": 8, "micro_batch_size": 2} | changes,
            "parallel": {"zero_stage": 0} | parallel,
        }
    )


def tensor_messages(rows=(ROW,), tensor=2, **changes):
    """(kind, bytes) -> how often, of one stage."""
    settings = config(tensor=tensor, **changes)
    layout = Layout(1, 1, tensor)
    found = Counter()
    for one in step_messages(settings, layout, num_ids=1000, stage=0, layers=range(LAYERS), rows=rows):
        found[one.kind, one.size] += one.number
    return found


def test_a_layer_has_two_all_reduces_forward_and_two_backward():
    found = tensor_messages()
    # The last layer sends its inputs' gradients only: what it does after attending concerns the targets.
    assert found["all_reduce", TH] == 4 * (LAYERS - 1) + 1 + 1
    assert found["all_reduce", NH] == 2 + 2
    assert found["all_reduce", 4 * N] == found["all_reduce", 8 * N] == 1


def test_recomputation_makes_every_forward_message_of_the_layers_again():
    more = tensor_messages(recompute="full") - tensor_messages()
    assert more == {("all_reduce", TH): 2 * (LAYERS - 1), ("all_reduce", NH): 2}
    assert tensor_messages(recompute="selective") == tensor_messages()


def test_sequence_parallelism_halves_each_all_reduce_in_two_and_adds_small_ones():
    found = tensor_messages(sequence=True)
    assert found["all_gather", TH] == 4 * (LAYERS - 1) + 3
    assert found["reduce_scatter", TH] == 4 * (LAYERS - 1) + 2
    assert found["all_reduce", 2 * 4 * H] == 2 * (LAYERS - 1) + 1
    assert found["all_reduce", 4 * H] == 2 * (LAYERS - 1)
    assert found["all_reduce", 2 * 64 * 4 * H] == 1
    assert not found["all_reduce", TH]


def test_label_smoothing_sends_a_third_number_a_target():
    more = tensor_messages(label_smoothing=0.1) - tensor_messages()
    assert more == {("all_reduce", 12 * N): 1}


def test_messages_of_micro_batches_add_up():
    twice = tensor_messages(rows=[ROW, ROW])
    assert twice["all_reduce", TH] == 2 * tensor_messages()["all_reduce", TH]


@pytest.mark.parametrize("layout", [Layout(1, 1, 1), Layout(4, 1, 1), Layout(1, 2, 1), Layout(2, 2, 2)])
def test_no_message_stays_within_one_process(layout):
    settings = config(tensor=layout.tensor, pipeline=layout.pipeline, zero_stage=1)
    axes = {
        message.axis for message in step_messages(settings, layout, num_ids=9, stage=0, layers=range(3), rows=[ROW])
    }
    sizes = {"tensor": layout.tensor, "data": layout.data, "pipeline": layout.pipeline, "world": layout.processes}
    assert {axis for axis in axes if axis != "model"} == {axis for axis, size in sizes.items() if size > 1}


def test_stages_send_hidden_states_on_and_gradients_back():
    settings = config(pipeline=3, tensor=2, sequence=True, precision="bf16", zero_stage=1)
    layout = Layout(1, 3, 2)
    sent = [
        sum(
            message.number * message.size
            for message in step_messages(
                settings, layout, num_ids=9, stage=stage, layers=range(2 * stage, 2 * stage + 2), rows=[ROW, ROW]
            )
            if message.kind == "send"
        )
        for stage in range(3)
    ]
    hidden = 2 * T * H // 2  # in bf16, this rank's half of the tokens
    assert sent == [2 * hidden, 4 * hidden, 2 * hidden]


def test_a_ring_sends_nearly_the_value_once_a_pass():
    messages = [
        Messages("all_reduce", "data", 800),
        Messages("all_gather", "data", 800, 2),
        Messages("send", "pipeline", 7),
    ]
    assert bytes_sent(messages, Layout(4, 2, 1)) == {"tensor": 0.0, "data": 600.0 * 4, "pipeline": 7.0}


def test_a_typical_step_of_one_process_sends_nothing():
    assert set(sent_per_step(config(), Layout(), num_ids=9, accumulation=4, stages=ALL).values()) == {0.0}
    sent = sent_per_step(config(tensor=2), Layout(2, 1, 2), num_ids=9, accumulation=2, stages=ALL)
    assert sent["tensor"] > sent["data"] > 0 == sent["pipeline"]


def test_planning_needs_no_torch():
    program = "import sys, megatron_glm.planning.typical_step; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
