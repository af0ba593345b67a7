"""Worker processes: the batches of a loader without them, whoever is killed, and nothing left behind."""

import gc
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megatron_glm.config.loading import config_from_tree, config_to_yaml
from megatron_glm.data import process_loader
from megatron_glm.data.batch import collate
from megatron_glm.data.dataset import SampleDataset
from megatron_glm.data.loader import StepLoader
from megatron_glm.data.manifest import Manifest, read_manifest, save_manifest
from megatron_glm.data.process_loader import ProcessLoader
from megatron_glm.data.skip_list import SkipList
from megatron_glm.errors import ConfigError, DataError
from megatron_glm.tokenizer.huggingface import HuggingFaceTokenizer
from megatron_glm.tokenizer.loading import load_tokenizer
from megatron_glm.tokenizer.special import ROLE_PIECES, SpecialTokens

GLOBAL = 24
TEXT_IDS = 400


@pytest.fixture
def run_of(tmp_path, write_corpus):
    """A small run on disk: its configuration, with settings of `data` and `train`."""
    pieces = [f"t{i}." if i % 10 == 0 else f"t{i}" for i in range(TEXT_IDS)] + list(ROLE_PIECES.values())
    model = tokenizers.models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[])
    special = SpecialTokens(**{role: pieces.index(piece) for role, piece in ROLE_PIECES.items()})
    written = HuggingFaceTokenizer("bpe", tokenizers.Tokenizer(model).to_str().encode(), special, prefix_space=False)
    written.save(tmp_path / "tokenizer")

    def make(lengths=(1, 30, 2, 90, 1, 200, 3, 400, 50), data=(), **train):
        ids = np.random.default_rng(1)
        corpus = [ids.integers(0, TEXT_IDS, length).tolist() for length in lengths]
        path = tmp_path / "data"
        if not path.exists():
            write_corpus(path, corpus, corpus[:2], append_eos=False)
            manifest = read_manifest(path).model_dump()
            manifest["tokenizer"] |= {"hash": written.content_hash, "vocab_size": len(pieces)}
            save_manifest(path, Manifest.model_validate(manifest))
        return config_from_tree(
            {
                "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "max_positions": 64},
                "tokenizer": {"path": str(tmp_path / "tokenizer")},
                "data": {"sources": [{"path": str(path)}], "window": 24, **dict(data)},
                "objective": {"token": 0.5, "sentence": 0.2, "document": 0.3},
                "optimizer": {"learning_rate": 1e-4},
                "train": {
                    "output": str(tmp_path / "run"),
                    "steps": 1,
                    "global_batch_size": GLOBAL,
                    "micro_batch_size": 4,
                    **train,
                },
            }
        )

    return make


def options_of(config):
    return {"pad_id": load_tokenizer(config.tokenizer.path).special.eos}


def in_process(config, consumed=0, dp=(0, 1), skips=None):
    dataset = SampleDataset.open(config, load_tokenizer(config.tokenizer.path))
    return StepLoader(
        dataset,
        partial(collate, **options_of(config)),
        consumed_samples=consumed,
        global_batch_size=config.train.global_batch_size,
        micro_batch_size=config.train.micro_batch_size,
        dp_rank=dp[0],
        dp_size=dp[1],
        prefetch=0,
        skips=skips,
    )


def with_workers(config, consumed=0, dp=(0, 1), **more):
    return ProcessLoader(config, options_of(config), consumed_samples=consumed, dp_rank=dp[0], dp_size=dp[1], **more)


def test_workers_leave_out_what_a_loader_without_them_does(run_of):
    config, skips = run_of(data={"workers": 2}), SkipList.of([(10, 31), (60, 61), (90, 130)])
    expected = take(in_process(config, consumed=5, dp=(1, 2), skips=skips), 4)
    assert take(with_workers(config, consumed=5, dp=(1, 2), skips=skips), 4) == expected
    assert expected != take(in_process(config, consumed=5, dp=(1, 2)), 4)


def contents(batch):
    """Everything that a batch holds, by name and type."""
    found = {}
    for name, value in vars(batch).items():
        if name in ("visibility", "row_keys"):
            found |= {f"{name}.{part}": inner for part, inner in vars(value).items()}
        else:
            found[name] = value
    return {
        name: (str(value.dtype), value.tolist()) if isinstance(value, torch.Tensor) else value
        for name, value in found.items()
    }


def digest(step):
    whole = (step.first_sample, step.target_counts, [contents(batch) for batch in step.micro_batches])
    return hashlib.sha256(repr(whole).encode()).hexdigest()


def take(loader, steps):
    with loader:
        return [digest(next(loader)) for _ in range(steps)]


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    workers=st.integers(1, 3),
    prefetch=st.integers(0, 5),
    layout=st.sampled_from([(1, 24), (1, 1), (2, 3), (3, 4), (4, 2)]),
    cut=st.integers(0, 4),
    phases=st.sampled_from([[], [{"from_sample": 3 * GLOBAL, "window": 16}]]),
    data=st.data(),
)
def test_the_batches_are_those_of_a_loader_without_workers(run_of, workers, prefetch, layout, cut, phases, data):
    dp_size, micro = layout
    dp = (data.draw(st.integers(0, dp_size - 1)), dp_size)
    config = run_of(data={"workers": workers, "prefetch": prefetch, "phases": phases}, micro_batch_size=micro)
    expected = take(in_process(config, cut * GLOBAL, dp), 5)
    assert take(with_workers(config, cut * GLOBAL, dp), 5) == expected


def test_the_longest_prefetch_fits_the_sockets(run_of):
    config = run_of(data={"workers": 1, "prefetch": 128})
    with with_workers(config) as loader:
        pid = loader.processes[0]
        os.kill(pid, signal.SIGKILL)  # the next one has all requests waiting before it answers any
        found = [digest(next(loader)) for _ in range(2)]
    assert found == take(in_process(config), 2)
    with pytest.raises(ConfigError, match=r"data\.prefetch: input should be less than or equal to 128 \(got 129\)"):
        run_of(data={"prefetch": 129})


def test_batches_are_equal_whatever_is_killed(run_of):
    config = run_of(data={"workers": 2, "prefetch": 4})
    expected = take(in_process(config), 30)
    random.seed(5)
    killed_at = sorted(random.sample(range(30), 3))
    told, found = [], []
    with with_workers(config, tell=told.append) as loader:
        for step in range(30):
            if step in killed_at:
                os.kill(random.choice(loader.processes), signal.SIGKILL)
                time.sleep(random.choice([0, 0.02]))
            found.append(digest(next(loader)))
    assert found == expected
    assert 1 <= len(told) <= 3  # two kills may hit before the first is seen, and one after the last answer
    assert all("was killed by signal 9; it is replaced and its steps are made again" in line for line in told)


def test_workers_that_die_again_and_again_end_the_run_with_one_line(run_of):
    loader = with_workers(run_of(data={"workers": 1}), tell=(told := []).append)
    stop = threading.Event()

    def kill_all():
        while not stop.is_set():
            for pid in loader.processes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)

    killer = threading.Thread(target=kill_all)
    killer.start()
    try:
        with loader:
            started = time.monotonic()
            for _ in range(2):
                with pytest.raises(DataError, match=r"data\.workers: data worker 0 .* signal 9, the 4th death"):
                    next(loader)
            assert time.monotonic() - started < 10
            assert len(told) == 3
    finally:
        stop.set()
        killer.join()


def test_a_worker_that_cannot_start_ends_the_run_with_its_exit_code(run_of, monkeypatch):
    monkeypatch.setattr(process_loader, "_WORKER_MODULE", "megatron_glm.data.no_such_module")
    with (
        with_workers(run_of(data={"workers": 1}), tell=(told := []).append) as loader,
        pytest.raises(DataError, match=r"data worker 0 \(pid \d+\) of replica 0 ended with code 1, the 4th death"),
    ):
        next(loader)
    assert len(told) == 3


def test_the_line_that_names_a_replaced_worker_goes_to_stderr(run_of, capfd):
    with with_workers(run_of(data={"workers": 1}), dp=(1, 2)) as loader:
        next(loader)
        pid = loader.processes[0]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_running(pid))
        next(loader)
        assert loader.processes[0] != pid
    captured = capfd.readouterr()
    assert captured.err.splitlines() == [
        f"data worker 0 (pid {pid}) of replica 1 was killed by signal 9; it is replaced and its steps are made again"
    ]
    assert captured.out == ""


def test_an_error_of_a_worker_is_raised_as_it_was_at_its_step(run_of, capfd):
    config = run_of(lengths=[200] * 40, data={"workers": 2, "prefetch": 4})
    shard = sorted(Path(config.data.sources[0].path, "train").glob("*.bin"))[5]
    damaged = bytearray(shard.read_bytes())
    damaged[400:402] = b"\xff\xff"  # an id outside the vocabulary
    shard.write_bytes(damaged)

    def until_it_fails(loader):
        with loader:
            for step in range(100):
                try:
                    next(loader)
                except DataError as error:
                    with pytest.raises(DataError, match=str(error)[:20]):
                        next(loader)
                    return step, str(error)
        return None

    expected = until_it_fails(in_process(config))
    assert expected is not None
    assert "is id 65535" in expected[1]
    assert until_it_fails(with_workers(config)) == expected
    assert capfd.readouterr().err == ""


def test_data_that_cannot_be_opened_is_told_at_the_first_step(run_of):
    config = run_of(data={"workers": 1})
    Path(config.data.sources[0].path, "manifest.json").unlink()
    with with_workers(config) as loader, pytest.raises(DataError, match=r"data\.sources\[0\]\.path"):
        next(loader)


def test_a_worker_that_is_started_later_does_not_go_on_with_other_data(run_of, tmp_path):
    config, told = run_of(data={"workers": 1}), []
    lengths = SampleDataset.open(config, load_tokenizer(config.tokenizer.path)).lengths
    with with_workers(config, lengths=lengths, tell=told.append) as loader:
        next(loader)
        (tmp_path / "data").rename(tmp_path / "moved away")
        run_of(lengths=[30] * 9)  # in the same place
        pid = loader.processes[0]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_running(pid))
        message = rf"data\.sources\[0\]: .* holds [\d,]+ stream tokens, and {lengths[0]:,} when the run began"
        with pytest.raises(DataError, match=message):
            [next(loader) for _ in range(5)]  # after those that were prepared
    assert len(told) == 1


def test_a_fault_of_the_program_names_itself(run_of, capfd):
    config = run_of(data={"workers": 1})
    with (
        ProcessLoader(config, {"no_such_option": 1}, consumed_samples=0, dp_rank=0, dp_size=1) as loader,
        pytest.raises(RuntimeError, match=r"a data worker failed with TypeError: .*no_such_option"),
    ):
        next(loader)
    assert "Traceback" in capfd.readouterr().err


def test_closing_leaves_nothing(run_of):
    config = run_of(data={"workers": 2, "prefetch": 4})
    gc.collect()  # of the tests before
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    loader = with_workers(config)
    step = next(loader)
    processes = loader.processes
    assert not any("/dev/shm" in Path(f"/proc/{pid}/maps").read_text() for pid in processes)  # no memory with a name
    started = time.monotonic()
    loader.close()
    loader.close()
    assert time.monotonic() - started < 2
    assert not any(map(is_running, processes))
    assert step.micro_batches[0].input_ids.sum() > 0  # what was handed out stays valid
    del step
    assert len(os.listdir("/proc/self/fd")) == before[0]
    assert threading.active_count() == before[1]


def test_workers_end_with_a_killed_parent(run_of, tmp_path):
    config = run_of(data={"workers": 2})
    (tmp_path / "config.yaml").write_text(config_to_yaml(config))
    program = (
        "import sys, time\n"
        f"sys.path[:] = {sys.path!r}\n"
        "from megatron_glm.config.loading import load_config\n"
        "from megatron_glm.data.process_loader import ProcessLoader\n"
        f"loader = ProcessLoader(load_config({str(tmp_path / 'config.yaml')!r}), {{'pad_id': 0}}, "
        "consumed_samples=0, dp_rank=0, dp_size=1)\n"
        "next(loader)\n"
        "print(*loader.processes, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        workers = list(map(int, parent.stdout.readline().split()))
        assert len(workers) == 2
        assert all(map(is_running, workers))
        parent.kill()
    assert wait_until(lambda: not any(map(is_running, workers)))


def test_an_interrupt_at_the_terminal_does_not_reach_the_workers(run_of):
    with with_workers(run_of(data={"workers": 1})) as loader:
        assert os.getpgid(loader.processes[0]) != os.getpgid(0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_all_processes_of_a_job_ends_no_worker(run_of, number):
    """It asks the run to stop, which goes on to the end of its step."""
    with with_workers(run_of(data={"workers": 1})) as loader:
        next(loader)  # it serves
        (worker,) = loader.processes
        os.kill(worker, number)
        next(loader)
        next(loader)
        assert loader.processes == [worker]


def test_a_worker_knows_no_torch():
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; import megatron_glm.data.step_worker; "
        "assert not {'torch', 'triton', 'glm_kernels.attention'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_two_loaders_of_a_replica_agree_and_leave_the_global_generators_alone(run_of):
    config = run_of(data={"workers": 1})
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    with with_workers(config) as one, with_workers(config) as other:
        assert [digest(next(one)) for _ in range(3)] == [digest(next(other)) for _ in range(3)]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]


def test_batches_are_pinned_where_asked(run_of, monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    config = run_of(data={"workers": 1}, micro_batch_size=12)
    with with_workers(config, pin_memory=True) as loader:
        step = next(loader)
    assert len(pinned) == 2 * 13
    assert any(tensor is step.micro_batches[0].input_ids for tensor in pinned)


def test_refuses_a_platform_without_anonymous_memory(run_of, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ConfigError, match=r"data\.workers: 1 needs Linux; set it to 0 here"):
        with_workers(run_of(data={"workers": 1}))


def test_refuses_a_layout_that_does_not_divide(run_of):
    with pytest.raises(ValueError, match="global batch 24 is not a multiple of 5 replicas"):
        with_workers(run_of(data={"workers": 1}), dp=(0, 5))
