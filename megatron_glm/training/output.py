"""The output directory of a run: one run writes to it, and its configuration lies beside the metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from megatron_glm.config.loading import config_to_yaml
from megatron_glm.config.schema import Config
from megatron_glm.errors import ConfigError
from megatron_glm.files import atomic_file
from megatron_glm.locking import exclusive, holder_of
from megatron_glm.training.control.stopping import forget_end

LOCK_FILE = ".lock"


@contextmanager
def locked_output(config: Config) -> Iterator[None]:
    """The output directory, made if need be, and kept from other runs. Raises ConfigError."""
    output = Path(config.train.output)
    with _told_as_config_error(output), ExitStack() as held:
        output.mkdir(parents=True, exist_ok=True)
        held.enter_context(exclusive(output / LOCK_FILE))
        release = held.pop_all()
    with release:
        yield


def write_config(config: Config) -> None:
    """Put the resolved configuration beside the metrics. Raises ConfigError."""
    output = Path(config.train.output)
    with _told_as_config_error(output):
        forget_end(output)
        with atomic_file(output / "config.yaml") as stream:
            stream.write(config_to_yaml(config).encode())


@contextmanager
def _told_as_config_error(output: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError as error:
        raise ConfigError(
            f"train.output: another run is writing to '{output}'; wait for it or choose another"
            f" (it is {holder_of(output / LOCK_FILE)})"
        ) from error
    except OSError as error:
        raise ConfigError(f"train.output: '{output}' cannot be written ({error.strerror}); choose another") from error
