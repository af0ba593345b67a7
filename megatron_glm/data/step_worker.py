"""A process that makes a replica's steps on request: `python -m megatron_glm.data.step_worker`.

Its standard input is a socket: a job, then the first sample of each step that is wanted. It imports no
torch, keeps no state between steps, and ends when the other side of the socket does; process_loader.py is that side.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, NoReturn, Self

import numpy as np

from megatron_glm.config.batching import BatchSizes
from megatron_glm.config.loading import config_from_tree
from megatron_glm.config.phases import all_sources, run_phases
from megatron_glm.config.schema import Config
from megatron_glm.data.dataset import SampleDataset
from megatron_glm.data.flat_row import FlatRow, flat_row
from megatron_glm.data.replica_share import step_indices
from megatron_glm.data.skip_list import SkipList
from megatron_glm.data.step_transport import Kind, receive, send_rows, send_text
from megatron_glm.errors import ConfigError, DataError, TokenizerError, UserError, is_of_machine
from megatron_glm.tokenizer.loading import load_tokenizer

_TICK_SECONDS = 1.0
_ERRORS = {kind.__name__: kind for kind in (ConfigError, DataError, TokenizerError, OSError)}


@dataclass(frozen=True)
class Job:
    """What a worker has to know to make any step of a replica.

    Attributes:
        options: of `flat_row`.
        skip_samples: ranges that are left out.
        lengths: stream tokens of each source, as the run has opened it; empty: not compared.
    """

    config: Config
    options: Mapping[str, int | None]
    dp_rank: int
    dp_size: int
    skip_samples: tuple[tuple[int, int], ...]
    lengths: tuple[int, ...] = ()

    def to_json(self) -> str:
        return json.dumps({**vars(self), "config": self.config.model_dump(mode="json"), "options": dict(self.options)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = json.loads(text)
        return cls(**{**fields, "config": config_from_tree(fields["config"])})

    def open(self) -> Callable[[int], list[FlatRow]]:
        """Open the dataset: a function from a step's first sample to its micro-batches.

        Raises:
            DataError: it cannot be opened, or is not the one that the run has opened.
        """
        dataset = SampleDataset.open(self.config, load_tokenizer(self.config.tokenizer.path))
        if self.lengths and tuple(self.lengths) != dataset.lengths:
            self._refuse(dataset.lengths)
        sizes, skips = BatchSizes.of(self.config.train), SkipList.of(self.skip_samples)
        layout = (self.dp_rank, self.dp_size, self.config.train.micro_batch_size)

        def step(first_sample: int) -> list[FlatRow]:
            indices = step_indices(first_sample, sizes.at(first_sample), *layout, skips)
            samples, size = dataset.samples(indices.ravel()), indices.shape[1]
            return [flat_row(samples[i : i + size], **self.options) for i in range(0, len(samples), size)]

        return step

    def _refuse(self, lengths: Sequence[int]) -> NoReturn:
        """A worker that takes another's place, or comes after a rewind, may find data that were written meanwhile."""
        sources = all_sources(run_phases(self.config))
        place = next(place for place, length in enumerate(lengths) if length != self.lengths[place])
        field, source = sources[place]
        raise DataError(
            f"{field}: '{source.name}' holds {lengths[place]:,} stream tokens, and {self.lengths[place]:,} when the run"
            " began; put back what it held, and resume"
        )


@dataclass(frozen=True)
class Failure:
    """An exception on its way to the other side."""

    kind: str
    arguments: list[Any]
    of_machine: bool = False

    @classmethod
    def of(cls, error: Exception) -> Self:
        if isinstance(error, OSError) and error.errno is not None:
            return cls("OSError", [error.errno, error.strerror, error.filename])
        return cls(type(error).__name__, [str(error)], is_of_machine(error))

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))

    def exception(self) -> Exception:
        """The exception as it was; one that no user is meant to see is a RuntimeError that names it."""
        kind = _ERRORS.get(self.kind)
        if kind is not None:
            flag = {"of_machine": self.of_machine} if issubclass(kind, UserError) else {}
            return kind(*self.arguments, **flag)
        return RuntimeError(f"a data worker failed with {self.kind}: {self.arguments[0]}")


def main() -> None:
    """Serve standard input until it ends."""
    # A launcher or a scheduler tells all processes of a job to stop: that is for the run, which ends its workers.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    other_side_ended = (BrokenPipeError, ConnectionResetError)
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as connection, suppress(*other_side_ended):
        _serve(connection)


def _serve(connection: socket.socket) -> None:
    parent = os.getppid()
    job, step = receive(connection), None
    if job is None:
        return
    while (first_sample := _next_request(connection, parent)) is not None:
        try:
            step = step or Job.from_json(job.text()).open()
            rows = step(first_sample)
        except Exception as error:
            failure = Failure.of(error)
            if failure.kind not in _ERRORS:
                traceback.print_exc()
            send_text(connection, Kind.FAILURE, first_sample, failure.to_json())
        else:
            send_rows(connection, first_sample, rows)


def _next_request(connection: socket.socket, parent: int) -> int | None:
    """The first sample of the step that is wanted next; None when the other side has ended."""
    # A process forked from the parent may hold the socket open after its death: so look for the parent too.
    while not select.select([connection], [], [], _TICK_SECONDS)[0]:
        if os.getppid() != parent:
            return None
    request = connection.recv(8)
    return int(np.frombuffer(request, np.int64)[0]) if request else None


if __name__ == "__main__":
    main()
