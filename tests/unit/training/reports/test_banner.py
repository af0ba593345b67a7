"""What a run says of its data before the first step."""

from megatron_glm.config.loading import config_from_tree
from megatron_glm.planning.stages import Division
from megatron_glm.training.reports.banner import banner

ONE_STAGE = Division((range(1),), "the only division")


def lines(*phases, replicas=1, layers=1, division=ONE_STAGE, parallel=None, **train):
    config = config_from_tree(
        {
            "model": {"num_layers": layers, "hidden_size": 8, "num_attention_heads": 2},
            "tokenizer": {"path": "-"},
            "data": {"sources": [{"path": "a"}, {"path": "b", "weight": 0.5}], "phases": list(phases)},
            "objective": {"token": 0.4, "document": 0.6},
            "optimizer": {"learning_rate": 1e-3},
            "train": {"output": "-", "steps": 9, "global_batch_size": 8, "micro_batch_size": 2} | train,
            "parallel": parallel or {},
        }
    )
    text = banner(
        config,
        device="cpu",
        replicas=replicas,
        accumulation=4,
        num_ids=9,
        num_parameters=99,
        division=division,
        compiled="nothing",
        start="from scratch",
        entropy={},
    )
    rows = (line.split("  ", 1) for line in map(str.strip, text.splitlines()) if "  " in line)
    return {name.strip(): value for name, value in rows}


def test_sources_and_objectives_are_shown_with_their_shares():
    shown = lines()
    assert shown["data"] == "a × 1, b × 0.5"
    assert shown["objective"] == "token 0.4, document 0.6; loss per_objective"
    assert not any(name.startswith("phase") for name in shown)


def test_each_phase_has_a_line_with_what_it_changes():
    shown = lines(
        {"from_sample": 900, "window": 64, "sources": [{"path": "c"}]},
        {"from_sample": 1900, "objective": {"token": 0.0, "document": 1.0}},
    )
    assert shown["phase 1"] == "from sample 900; c × 1; window 64"
    assert shown["phase 2"] == "from sample 1900; token 0.0; document 1.0"


def test_what_changes_with_the_samples_has_a_line_where_it_is_used():
    assert not {"batch ramp", "embeddings"} & lines().keys()
    shown = lines(
        batch_ramp={"start": 2, "increment": 2, "samples": 90},
        embedding_gradient={"factor": 0.1, "hold_samples": 50, "rise_samples": 20},
    )
    assert shown["batch ramp"] == "from 2 samples by 2 until sample 90"
    assert shown["embeddings"] == "gradient from the input × 0.1, rising to 1 from sample 50 to 70"
    assert lines(embedding_gradient={"factor": 0.1})["embeddings"] == "gradient from the input × 0.1"


def test_what_the_processes_send_each_other_is_told_where_there_are_several():
    assert "sent" not in lines()
    assert lines(replicas=2)["sent"].startswith("about ")
    assert lines(replicas=2)["sent"].endswith("B over data, by each process in a step")


def test_the_stages_are_those_that_the_run_has_with_the_reason():
    assert "stages" not in lines()
    division = Division((range(3), range(3, 5)), "by measured times, first 3, inner 2, last 5 ms a micro-batch")
    shown = lines(layers=5, parallel={"pipeline": 2}, division=division)
    assert shown["stages"] == "3 + 2 layers, by measured times, first 3, inner 2, last 5 ms a micro-batch"
    assert shown["0"].split()[:2] == ["0", "0–2"]  # the first rank's row of the table


def test_who_has_what_is_told_under_its_own_name_before_the_start():
    assert not {"ranks", "schedule"} & lines().keys()
    shown = lines(layers=2, parallel={"pipeline": 2}, division=Division((range(1), range(1, 2)), "given"))
    assert shown["ranks"].split()[:2] == ["rank", "stage"]
    assert shown["schedule"].startswith("stage 0 ")
    assert list(shown)[-2:] == ["start", "to resume"]


def test_a_rank_s_parameters_are_those_of_its_stage_and_shard():
    """Counted by hand: 2 × 8 features, 9 ids in 128 rows, 513 positions in two tables."""
    layer = (3 * 8 * 8 + 3 * 8) + (8 * 8) + (4 * 8 * 8 + 4 * 8) + (4 * 8 * 8)
    whole = 2 * 2 * 8 + 2 * 8  # norms; the biases of dense and dense_4h_to_h
    division = Division((range(2), range(2, 3)), "parallel.stage_layers")
    shown = lines(layers=3, replicas=2, parallel={"pipeline": 2, "tensor": 2}, division=division)
    first = 128 * 8 // 2 + 2 * 513 * 8 + 2 * (layer // 2 + whole)
    last = 128 * 8 // 2 + (layer // 2 + whole) + 2 * 8
    counts = [int(shown[rank].split()[-1].replace(",", "")) for rank in ("0", "1", "4", "5")]
    assert counts == [first, first, last, last]
