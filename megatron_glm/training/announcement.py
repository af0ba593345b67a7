"""What a run says before its first step."""

from __future__ import annotations

from dataclasses import asdict

from megatron_glm.data.unigram import unigram_entropy
from megatron_glm.training.engines.stage_division import stage_bounds
from megatron_glm.training.prepared_run import PreparedRun
from megatron_glm.training.reports.banner import banner, versions
from megatron_glm.training.reports.console import Console


def announce(run: PreparedRun, console: Console) -> None:
    """The banner, and the record that opens this part of the metrics file."""
    held_out, engine, replicas = run.inputs.held_out, run.engine, run.groups.layout.data
    entropy = {o.name.lower(): unigram_entropy(held_out, o) for o in held_out.objectives}
    console.say(
        banner(
            run.config,
            device=str(engine.device),
            replicas=replicas,
            accumulation=run.accumulation,
            num_ids=run.inputs.tokenizer.vocab_size,
            num_parameters=engine.num_parameters,
            division=run.division,
            compiled=run.compilation.told,
            start="\n".join(run.beginning.notes),
            entropy=entropy,
        )
    )
    console.record(
        {
            "kind": "start",
            **asdict(run.beginning.progress),
            "notes": run.beginning.notes,
            "unigram_entropy": entropy,
            "windows": held_out.num_windows,
            "replicas": replicas,
            "stages": stage_bounds(run.division.stages),
            "parameters": engine.num_parameters,
            "compiled": run.compilation.is_on,
            "versions": versions(),
        }
    )
