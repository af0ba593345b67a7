"""Stands in for DeepSpeed's launcher and its ranks: `stand_in.py launcher|rank BEHAVIOUR --config FILE …`.

The launcher has no handler, so SIGTERM ends it and leaves its ranks, and it ends with 1 when it has ended them.
The ranks do what pretrain_glm.py does: a first signal makes them tell of their end and go.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from megatron_glm.checkpoint.manifest import Manifest

OUTPUT = Path(os.environ["STAND_IN_OUTPUT"])


def note(text: str) -> None:
    with open(OUTPUT / "notes", "a", encoding="utf-8") as stream:
        stream.write(f"{text}\n")


def launcher(behaviour: str) -> None:
    start = int(os.environ["GLM_RESTARTS"])
    note(f"start {start} {' '.join(sys.argv[-2:])}")
    if behaviour == "no ranks":
        while not (OUTPUT / "stop").exists():
            time.sleep(0.02)
        end("the stop file")
        return
    if behaviour == "loses its checkpoint":
        checkpoint = OUTPUT / "checkpoints" / "step_00000004"
        if start == 0:
            checkpoint.mkdir(parents=True)
            (checkpoint / "manifest.json").write_bytes(Manifest("run", 4, {}).to_json())
        elif checkpoint.exists():
            shutil.rmtree(checkpoint.parent)
        sys.exit(2 if start == 2 else 1)
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "rank", behaviour],
            env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in (0, 1)
    ]
    codes = [rank.wait() for rank in ranks]
    sys.exit(max(codes))


def end(reason: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        (OUTPUT / "end.json").write_text(json.dumps({"step": 1, "finished": reason == "", "reason": reason}))


def rank(behaviour: str) -> None:
    asked = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))
    parent = os.getppid()
    # A process of its own has its environment, and is no rank.
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note(f"rank {os.environ['RANK']} {os.getpid()} {worker.pid}")
    if behaviour == "fails twice" and int(os.environ["GLM_RESTARTS"]) < 2:
        worker.kill()
        sys.exit(1)
    if behaviour.startswith("fails"):
        worker.kill()
        end("")
        sys.exit(2 if behaviour == "fails for ever" else 0)
    while not asked and os.getppid() == parent:
        time.sleep(0.02)
    if behaviour == "hangs":
        time.sleep(600)
    worker.kill()
    worker.wait()
    if asked:
        note(f"rank {os.environ['RANK']} was told {signal.Signals(asked[0]).name}")
        end("a signal")


if __name__ == "__main__":
    {"launcher": launcher, "rank": rank}[sys.argv[1]](sys.argv[2])
