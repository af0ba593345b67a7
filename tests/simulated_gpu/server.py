"""Runs functions in the ranks of a job on the simulated machine: a request a line of stdin, an answer a line of stdout.

Of its own process, so that the processes it forks have found a GPU from the first import on.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module

from tests.distributed.ranks import run_ranks


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the ranks print is no answer
    for line in sys.stdin:
        size, module, function, args = json.loads(line)
        try:
            answer = run_ranks(size, getattr(import_module(module), function), *args, timeout=240.0), None
        except AssertionError as error:
            answer = None, str(error)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
