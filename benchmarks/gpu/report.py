"""One report of the parts: JSON, a table in Markdown with the aims and whether they are met, and plots.

    python -m benchmarks.gpu.report PARTS OUTPUT

PARTS holds the JSON of each part and `status.txt`, a line of name and exit code for each that ran. Exit code 1 if one
of them failed or something of ours could not run somewhere; an aim that is missed is a finding, not a failure.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.origin import origin

Row = dict[str, Any]
Parts = Mapping[str, Sequence[Row]]

OURS, FLASH, FLEX = "ours", "flash varlen, two calls", "FlexAttention, intervals"


@dataclass(frozen=True)
class Aim:
    """What was aimed at: at least this value; the worst that was measured, None where nothing was."""

    what: str
    least: float
    worst: float | None

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.worst is None:
            return "not measured"
        return "met" if self.worst >= self.least else "missed"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", type=Path, help="directory with the JSON of the parts")
    parser.add_argument("output", type=Path, help="directory of the report")
    args = parser.parse_args(argv)
    parts = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(args.parts.glob("*.json"))}
    status = read_status(args.parts / "status.txt")
    rows = {name: part["rows"] for name, part in parts.items()}
    report = {
        **origin("benchmarks.gpu.report", [], ["torch", "triton", "deepspeed", "flash-attn"]),
        "gpu": gpu_name(),
        "rehearsal": any(part["rehearsal"] for part in parts.values()),
        "status": status,
        "seconds": {name: part["seconds"] for name, part in parts.items()},
        "aims": [vars(aim) | {"verdict": aim.verdict} for aim in aims(rows)],
        "parts": rows,
    }
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "gpu_check.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    text = markdown(report)
    (args.output / "gpu_check.md").write_text(text, encoding="utf-8")
    print(text)
    plot(rows.get("attention", ()), args.output / "attention.png")
    # Training has no contestants.
    ours = (row for found in rows.values() for row in found if row.get("contestant", row.get("way", OURS)) == OURS)
    broken = [row for row in ours if "error" in row]
    return 1 if broken or any(status.values()) else 0


def read_status(file: Path) -> dict[str, int]:
    """The exit code of each part that ran."""
    pairs = (line.rsplit(maxsplit=1) for line in file.read_text(encoding="utf-8").splitlines())
    return {name: int(code) for name, code in pairs}


def gpu_name() -> str:
    """The GPU of this machine, or that there is none."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def aims(parts: Parts) -> Iterator[Aim]:
    """The aims of the kernels and of training, each with the worst of what was measured."""
    attention = [row for row in parts.get("attention", ()) if row["dropout"] == 0 and "error" not in row]
    packed = [row for row in attention if row["samples"] > 1]
    yield Aim("attention forward, share of flash varlen's speed", 0.9, _worst(attention, FLASH, "forward_ms"))
    yield Aim("attention backward, share of flash varlen's speed", 0.65, _worst(attention, FLASH, "backward_ms"))
    yield Aim("attention forward on packed rows, times FlexAttention's speed", 1.3, _worst(packed, FLEX, "forward_ms"))
    yield Aim(
        "attention backward on packed rows, times FlexAttention's speed", 1.3, _worst(packed, FLEX, "backward_ms")
    )
    for model, least in (("GLM-Large", 0.3), ("GLM-2B", 0.4)):
        # Compiled, as a run on a GPU trains.
        trained = [row for row in parts.get("training_step", ()) if model in row["model"] and row["compiled"]]
        measured = [row["mfu"] for row in trained if row.get("mfu")]
        yield Aim(f"{model}, MFU of a training step", least, min(measured, default=None))


def _worst(rows: Sequence[Row], peer: str, time: str) -> float | None:
    """The smallest ratio of the peer's time to ours over the rows that both ran."""
    times = {(row["contestant"], row["length"], row["samples"]): row[time] for row in rows}
    ratios = [
        times[peer, *place] / ours for (name, *place), ours in times.items() if name == OURS and (peer, *place) in times
    ]
    return min(ratios, default=None)


def markdown(report: Mapping[str, Any]) -> str:
    """The report as text, tables and all."""
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    lines = [f"GPU: {report['gpu']}; {versions}; commit {report['commit']}"]
    if report["rehearsal"]:
        lines = ["**A rehearsal on a CPU: the times mean nothing.**", "", *lines]
    lines += ["", *_table(["part", "exit code", "seconds"], _status_cells(report)), ""]
    aim_cells = ([aim["what"], f"≥ {aim['least']:g}", _number(aim["worst"]), aim["verdict"]] for aim in report["aims"])
    lines += [*_table(["aim", "at least", "measured, worst", ""], aim_cells), ""]
    for row_of, rows in ((_attention_cells, "attention"), (_fused_cells, "fused"), (_training_cells, "training_step")):
        if found := report["parts"].get(rows):
            cells = [row_of(row) for row in found]
            lines += [*_table(list(cells[0]), (row.values() for row in cells)), ""]
    return "\n".join(lines)


def _status_cells(report: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, code in report["status"].items():
        yield [name, str(code), _number(report["seconds"].get(name))]


def _attention_cells(row: Row) -> dict[str, str]:
    return {
        "samples × tokens": f"{row['samples']} × {row['length']}",
        "dropout": f"{row['dropout']:g}",
        "attention by": row["contestant"],
        "forward, ms": _number(row.get("forward_ms")),
        "TFLOP/s": _number(row.get("forward_tflops")),
        "backward, ms": _number(row.get("backward_ms")),
        "TFLOP/s ": row.get("error") or _number(row["backward_tflops"]),
    }


def _fused_cells(row: Row) -> dict[str, str]:
    return {
        "operation": row["operation"],
        "by": row["way"],
        "forward, ms": _number(row.get("forward_ms")),
        "backward, ms": _number(row.get("backward_ms")),
        "peak, MB": _number(row.get("peak_mb")),
        "GB/s": row.get("error") or _number(row.get("gb_per_s")),
    }


def _training_cells(row: Row) -> dict[str, str]:
    return {
        "model": row["model"],
        "norms, GELU": "compiled" if row["compiled"] else "torch's",
        "tokens a step": str(row.get("tokens", "–")),
        "step, ms": _number(row.get("step_ms")),
        "tokens/s": f"{row['tokens_per_s']:,.0f}" if "tokens_per_s" in row else "–",
        "TFLOP/s": _number(row.get("tflops")),
        "MFU": _number(row.get("mfu")),
        "peak, GB": row.get("error") or _number(row["peak_gb"]),
    }


def _table(head: Sequence[str], rows: Iterator) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def plot(rows: Sequence[Row], file: Path) -> None:
    """TFLOP/s by the length of the samples, forward and backward, single and packed, without dropout."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), sharex=True)
    shown = [row for row in rows if row["dropout"] == 0 and "error" not in row]
    for line, packed in zip(axes, (False, True), strict=True):
        for axis, direction in zip(line, ("forward", "backward"), strict=True):
            axis.set_title(f"{direction}, {'packed rows' if packed else 'one sample'}")
            axis.set_ylabel("TFLOP/s of visible pairs")
            for name in dict.fromkeys(row["contestant"] for row in shown):
                own = [row for row in shown if row["contestant"] == name and (row["samples"] > 1) == packed]
                axis.plot([r["length"] for r in own], [r[f"{direction}_tflops"] for r in own], marker="o", label=name)
            axis.set_xscale("log", base=2)
            axis.set_xlabel("tokens a sample")
    if shown:
        axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    raise SystemExit(main())
