"""One run under many layouts: loss curves on one picture, and how far they are apart.

    python -m benchmarks.layout_curves [--steps 200] [--json FILE] [--picture FILE]

A small GLM on real English prose, which is collected here first (data_tools.sample_corpus). The same seed, samples
and settings, fp32 with dropout 0.1, under the `deepspeed` launcher; what differs is who does the work. Rounding differs
with it, and training enlarges that slowly, so the curves are one line to the eye and agree to some digits; the figures
say to how many.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.origin import origin
from megatron_glm.training.launchers import free_port
from megatron_glm.training.reports.metrics import read_metrics

LAYOUTS: dict[str, tuple[int, Sequence[str]]] = {
    "1 process": (1, ["parallel.zero_stage=0"]),
    "TP 2": (2, ["parallel.tensor=2", "parallel.zero_stage=0"]),
    "TP 2, sequence": (2, ["parallel.tensor=2", "parallel.sequence=true", "parallel.zero_stage=1"]),
    "PP 2": (2, ["parallel.pipeline=2", "parallel.zero_stage=0"]),
    "DP 2, ZeRO 1": (2, ["parallel.zero_stage=1"]),
    "DP 2, ZeRO 2": (2, ["parallel.zero_stage=2"]),
    "DP 2, ZeRO 3": (2, ["parallel.zero_stage=3"]),
    "TP 2 × PP 2": (4, ["parallel.tensor=2", "parallel.pipeline=2", "parallel.zero_stage=1"]),
}
_PACKAGES = ("numpy", "torch")  # whose docstrings are the text
_VOCAB_SIZE = 1000
_SETTINGS = {
    "model": {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "max_positions": 128},
    "data": {"window": 128},
    "objective": {"token": 0.5, "document": 0.5},
    "optimizer": {"learning_rate": 1e-3},
    "schedule": {"warmup_steps": 20},
    "train": {"output": "run", "steps": 1, "global_batch_size": 16, "micro_batch_size": 4, "threads": 1},
}
_COMMON = (
    *("train.precision=fp32", "train.log_interval=1", "model.hidden_dropout=0.1", "model.attention_dropout=0.1"),
    *("checkpoint.save_interval=null", "train.eval_samples=16"),
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), metavar="NAME")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--picture", type=Path, help="draw the curves into this file")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as place:
        config = write_config(Path(place))
        losses = {name: _run(name, config, args.steps) for name in args.layouts}
    reference = losses[args.layouts[0]]
    differences = {name: _differences(curve, reference) for name, curve in losses.items()}
    for name, found in differences.items():
        worst = max(found)
        print(f"{name:16} last loss {losses[name][-1]:.6f}  largest relative difference {worst:.1e}")
    if args.picture:
        _draw(losses, differences, args.picture)
    if args.json:
        figures = {
            "origin": origin("benchmarks.layout_curves", argv or sys.argv[1:], ("torch", "deepspeed")),
            "largest relative difference": {name: max(found) for name, found in differences.items()},
            "losses": losses,
        }
        args.json.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_config(place: Path) -> Path:
    """A corpus of real prose, its tokenizer and shards, and the configuration that trains on them."""
    text, tokenizer, data = place / "text.jsonl", place / "tokenizer", place / "data"
    for module, *arguments in (
        ("sample_corpus", "--output", text, "--min-megabytes", 1, "--packages", *_PACKAGES),
        ("train_tokenizer", "--input", text, "--vocab-size", _VOCAB_SIZE, "--output", tokenizer),
        ("preprocess", "--input", text, "--tokenizer", tokenizer, "--output", data, "--held-out", 0.05),
    ):
        command = [sys.executable, "-m", f"data_tools.{module}", *map(str, arguments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    paths = {"tokenizer": {"path": str(tokenizer)}, "data": _SETTINGS["data"] | {"sources": [{"path": str(data)}]}}
    config = place / "config.yaml"
    config.write_text(json.dumps(_SETTINGS | paths), encoding="utf-8")  # JSON is YAML too
    return config


def _run(name: str, config: Path, steps: int) -> list[float]:
    processes, overrides = LAYOUTS[name]
    with tempfile.TemporaryDirectory() as output:
        command = [
            *(str(Path(sys.executable).with_name("deepspeed")), "--quiet", "--num_accelerators", str(processes)),
            *("--master_port", str(free_port())),
            *("pretrain_glm.py", "--config", str(config), f"train.output={output}", f"train.steps={steps}"),
            *(f"train.eval_interval={steps}", *_COMMON, *overrides),
        ]
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
        return [record["loss"] for record in read_metrics(Path(output) / "metrics.jsonl") if record["kind"] == "train"]


def _differences(curve: Sequence[float], reference: Sequence[float]) -> list[float]:
    return [abs(a - b) / b for a, b in zip(curve, reference, strict=True)]


def _draw(losses: Mapping[str, Sequence[float]], differences: Mapping[str, Sequence[float]], picture: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for number, (name, curve) in enumerate(losses.items()):
        steps = range(1, len(curve) + 1)
        width = 1 + 0.8 * (len(losses) - number)  # all are one line: the first ones show beside the last
        (line,) = above.plot(steps, curve, linewidth=width, label=name)
        if any(differences[name]):
            # A difference of zero has no place on the axis, and is left out.
            apart = [found or float("nan") for found in differences[name]]
            below.semilogy(steps, apart, ".", markersize=3, color=line.get_color())
    above.set_ylabel("loss (nats per target token)")
    above.legend(frameon=False)
    below.set_ylabel(f"relative to {next(iter(losses))}")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    FigureCanvasAgg(figure).print_png(str(picture))


if __name__ == "__main__":
    main()
