"""A loader whose steps are made by worker processes; a worker that is killed is replaced.

Each step is asked of one worker, whole, and workers answer in the order of asking: the steps are taken in
order by reading the sockets in turn, without a thread. As a step is a pure function of its first sample,
a step that was lost with its worker is simply asked for again.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from megatron_glm.command import tell
from megatron_glm.config.batching import BatchSizes
from megatron_glm.config.schema import Config
from megatron_glm.data.batch import Batch
from megatron_glm.data.loader import Loader, Step
from megatron_glm.data.replica_share import step_end, step_indices
from megatron_glm.data.skip_list import SkipList
from megatron_glm.data.step_transport import Kind, Message, receive, send_text
from megatron_glm.data.step_worker import Failure, Job
from megatron_glm.errors import ConfigError, DataError

_WORKER_MODULE = "megatron_glm.data.step_worker"
_REPLACEMENTS = 3  # in a row, without a step
_CLOSE_SECONDS = 5.0


class ProcessLoader(Loader):
    """A loader over `data.workers` processes, which open the data of `config` for themselves.

    `data.prefetch` steps are prepared ahead, and at least one by each worker.

    Args:
        options: of `flat_row`, as they are bound to `collate` elsewhere.
        consumed_samples, skips: as in `StepLoader`.
        lengths: stream tokens of each source, which every worker must find, also one that is started later.
        pin_memory: put batches into page-locked memory, for a GPU.
        tell: takes the line that names a worker which was replaced.

    Attributes:
        processes: ids of the workers that run.

    Raises:
        ConfigError: a platform without anonymous memory, or no process can be started.
        DataError: when a step is asked for: the data cannot be read or are others, a worker died four times in a row.
    """

    def __init__(
        self,
        config: Config,
        options: Mapping[str, int | None],
        *,
        consumed_samples: int,
        dp_rank: int,
        dp_size: int,
        skips: SkipList | None = None,
        lengths: Sequence[int] = (),
        pin_memory: bool = False,
        tell: Callable[[str], None] | None = None,
    ):
        super().__init__()
        train, self._dp_rank = config.train, dp_rank
        self._sizes, self._skips = BatchSizes.of(train), skips or SkipList()
        step_indices(consumed_samples, self._sizes.at(consumed_samples), dp_rank, dp_size, train.micro_batch_size)
        if not hasattr(os, "memfd_create"):
            raise ConfigError(f"data.workers: {config.data.workers} needs Linux; set it to 0 here")
        self._ahead = max(config.data.prefetch, config.data.workers)
        self._next_sample = consumed_samples  # of the next step to be asked for
        self._pending: deque[_Worker] = deque()  # whose turn it is
        self._pin_memory = pin_memory
        self._tell = tell or _to_stderr
        self._deaths = 0  # since the last step
        self._failure: Exception | None = None
        job = Job(config, options, dp_rank, dp_size, self._skips.ranges, tuple(lengths)).to_json()
        self._workers: list[_Worker] = []
        try:
            for number in range(config.data.workers):
                self._workers.append(_Worker(number, job))
        except BaseException:
            self.close()
            raise
        self._ask_ahead()

    @property
    def processes(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        for worker in self._workers:
            worker.end()

    def _next(self) -> Step:
        if self._failure is not None:
            raise self._failure
        for worker in self._workers:
            if worker.process.poll() is not None:
                self._replace(worker)
        message = self._answer(self._pending[0])
        if message.kind is Kind.FAILURE:
            self._failure = Failure.from_json(message.text()).exception()
            raise self._failure
        self._pending.popleft()
        self._ask_ahead()
        batches = [Batch.of(row) for row in message.rows()]
        return Step.of(message.first_sample, batches, pin_memory=self._pin_memory)

    def _ask_ahead(self) -> None:
        while len(self._pending) < self._ahead:
            worker = min(self._workers, key=lambda worker: len(worker.asked))
            worker.ask(self._next_sample)
            self._pending.append(worker)
            self._next_sample = step_end(self._next_sample, self._sizes, self._skips)

    def _answer(self, worker: _Worker) -> Message:
        while (message := receive(worker.connection)) is None:
            self._replace(worker)
        worker.asked.popleft()
        self._deaths = 0
        return message

    def _replace(self, worker: _Worker) -> None:
        """Start a dead worker again and ask it for the same steps."""
        pid, end = worker.process.pid, worker.end()
        name = f"data worker {worker.number} (pid {pid}) of replica {self._dp_rank} {end}"
        self._deaths += 1
        if self._deaths > _REPLACEMENTS:
            self._failure = DataError(
                f"data.workers: {name}, the {self._deaths}th death without a step between; where memory is short, "
                "lower data.workers or data.prefetch",
                of_machine=True,
            )
            raise self._failure
        self._tell(f"{name}; it is replaced and its steps are made again")
        worker.start()


class _Worker:
    """A process, its socket, and the first samples of the steps asked of it and not yet answered."""

    def __init__(self, number: int, job: str):
        self.number = number
        self.asked: deque[int] = deque()
        self._job = job
        self.start()

    def start(self) -> None:
        """Start the process, and ask for everything that has been asked for. Raises ConfigError."""
        self.connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", _WORKER_MODULE],
                    stdin=other,
                    stdout=subprocess.DEVNULL,
                    env=_environment(),
                    process_group=0,  # Ctrl-C at the terminal is for the run, which then ends its workers
                )
            except OSError as error:
                self.connection.close()
                raise ConfigError(f"data.workers: cannot start a process ({error.strerror}); lower it") from error
        with suppress(BrokenPipeError, ConnectionResetError):  # dead already: the next answer will tell
            send_text(self.connection, Kind.JOB, 0, self._job)
        for first_sample in self.asked:
            self._request(first_sample)

    def ask(self, first_sample: int) -> None:
        self.asked.append(first_sample)
        self._request(first_sample)

    def end(self) -> str:
        """Kill the process, which has nothing to lose; how it ended, in words."""
        self.connection.close()
        self.process.poll()
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_CLOSE_SECONDS)
        code = self.process.returncode
        return f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"

    def _request(self, first_sample: int) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(np.int64(first_sample).tobytes())


def _environment() -> dict[str, str]:
    """This process's, with its import path, and without threads that would stand in each other's way."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _to_stderr(line: str) -> None:
    tell(line, stream=sys.stderr)
