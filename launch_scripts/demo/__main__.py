"""The main job at a small size, on real text: `python -m launch_scripts.demo --directory runs/demo`.

corpus → tokenizer → shards → pretraining with two processes → release → blanks filled in a fresh process
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from launch_scripts.demo.code import REPOSITORY, code_of
from launch_scripts.demo.stages import Chain, Stage
from launch_scripts.demo.summary import REQUIRED_GAIN_NATS, Paths, gain_nats, summary
from megatron_glm.command import run_command
from megatron_glm.errors import UserError
from megatron_glm.files import atomic_file
from megatron_glm.training.launchers import free_port

PROCESSES = 2
VOCAB_SIZE = 1000
PROMPTS = (
    ("This function returns the [MASK] of the two arrays.",),
    ("If the value is [MASK], the default is used. The result is a [MASK] of strings.",),
    ("The following example shows how to [gMASK]", "--temperature", "0.8", "--top-p", "0.9"),
)


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(build_parser(), run, argv)


def build_parser() -> argparse.ArgumentParser:
    """The options of a demo."""
    parser = argparse.ArgumentParser(
        prog="python -m launch_scripts.demo",
        description="Run the whole path on real text: corpus, tokenizer, shards, training, release, generation.",
    )
    parser.add_argument("--directory", type=Path, default=Path("runs/demo"), help="where everything is written")
    parser.add_argument("--config", type=Path, default=Path("configs/demo.yaml"))
    parser.add_argument("--min-megabytes", type=float, default=8.0, help="of the sample corpus")
    parser.add_argument("--packages", nargs="+", default=[], metavar="NAME", help="modules of the corpus; default: all")
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE, help="token ids of the tokenizer")
    parser.add_argument(
        "--settings", nargs="+", default=[], metavar="section.key=value", help="of the training run, e.g. train.steps=9"
    )
    return parser


def run(args: argparse.Namespace) -> None:
    paths = Paths(args.directory)
    Chain(paths.memory, _say).run(stages(paths, args))
    print()
    print(summary(paths))
    if not args.settings and gain_nats(paths) < REQUIRED_GAIN_NATS:
        raise UserError(f"the model learned too little: {gain_nats(paths):.2f} nats of {REQUIRED_GAIN_NATS}")


def stages(paths: Paths, args: argparse.Namespace) -> list[Stage]:
    """The chain, in order. Each stage also depends on the code that it runs."""
    packages = ["--packages", *args.packages] if args.packages else []
    settings = [
        f"tokenizer.path={paths.tokenizer}",
        f"data.sources=[{{path: {paths.data}}}]",
        f"train.output={paths.run}",
        *args.settings,
    ]
    return [
        Stage(
            "corpus",
            lambda: _python(
                "data_tools.sample_corpus",
                *("--output", paths.corpus, "--min-megabytes", args.min_megabytes, *packages),
            ),
            inputs=code_of("data_tools.sample_corpus"),
            outputs=(paths.corpus,),
            settings={
                "installed": sorted(f"{package.name} {package.version}" for package in distributions()),
                "packages": args.packages,
                "megabytes": args.min_megabytes,
            },
        ),
        Stage(
            "tokenizer",
            lambda: _python(
                "data_tools.train_tokenizer",
                *("--input", paths.corpus, "--vocab-size", args.vocab_size, "--output", paths.tokenizer),
            ),
            inputs=(paths.corpus, *code_of("data_tools.train_tokenizer")),
            outputs=(paths.tokenizer,),
            settings={"vocab_size": args.vocab_size},
        ),
        Stage(
            "data",
            lambda: _python(
                "data_tools.preprocess",
                *("--input", paths.corpus, "--tokenizer", paths.tokenizer, "--output", paths.data),
                # Begun anew: the chain may have made another tokenizer since it was interrupted.
                *("--held-out", 0.05, "--workers", PROCESSES, "--restart"),
            ),
            inputs=(paths.corpus, paths.tokenizer, *code_of("data_tools.preprocess")),
            outputs=(paths.data,),
        ),
        Stage(
            "training",
            lambda: _pretrain(args.config, settings),
            inputs=(
                paths.tokenizer,
                paths.data,
                args.config,
                *code_of("pretrain_glm", "megatron_glm.data.step_worker"),
            ),
            outputs=(paths.run,),
            settings={"settings": args.settings},
            resumable=True,
        ),
        Stage(
            "release",
            lambda: _python(
                "megatron_glm.cli", "export", "--checkpoint", paths.run / "checkpoints", "--output", paths.release
            ),
            inputs=(paths.run / "checkpoints", *_code("megatron_glm/release")),
            outputs=(paths.release,),
        ),
        Stage(
            "generations",
            lambda: _generate(paths),
            inputs=(paths.release, *_code("megatron_glm/generation")),
            outputs=(paths.generations,),
            settings={"prompts": [list(prompt) for prompt in PROMPTS]},
        ),
    ]


def _code(*parts: str) -> tuple[Path, ...]:
    return tuple(REPOSITORY / part for part in parts)


def _say(line: str) -> None:
    print(f"── {line}", flush=True)


def _python(module: str, *arguments: object) -> None:
    _call([sys.executable, "-m", module, *map(str, arguments)])


def _pretrain(config: Path, settings: Sequence[str]) -> None:
    """Train under the launcher: two processes on a CPU, at most the GPUs there are."""
    import torch

    precision = "bf16" if _multiplies_bf16() else "fp32"
    launcher = Path(sys.executable).with_name("deepspeed")
    script = REPOSITORY / "pretrain_glm.py"
    where = [*_devices(torch.cuda.device_count()), "--master_port", str(free_port())]
    command = [str(launcher), "--quiet", *where, str(script), "--config", str(config)]
    _call([*command, f"train.precision={precision}", *settings])


def _devices(gpus: int) -> list[str]:
    """The options of the launcher for so many GPUs that this process sees."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus and visible:
        # Given a number it would take the first GPUs of the machine, whoever uses them.
        return ["--include", f"localhost:{','.join(visible.split(',')[:PROCESSES])}"]
    return ["--num_accelerators", str(min(PROCESSES, gpus) or PROCESSES)]


def _multiplies_bf16() -> bool:
    """Whether this device has bf16 instructions: a GPU from Ampere on; a CPU with them has four times fp32's speed."""
    import torch
    from torch.cpu import get_capabilities

    if torch.cuda.is_available():
        return torch.cuda.get_device_capability() >= (8, 0)
    capabilities = get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _generate(paths: Paths) -> None:
    """Fill each prompt in a process of its own, which has nothing but the release."""
    results = []
    for prompt, *options in PROMPTS:
        command = [sys.executable, "-m", "megatron_glm.cli", "generate", "--model", str(paths.release)]
        result = _call([*command, "--text", prompt, "--max-tokens", "24", *options], capture=True)
        results.append({"prompt": prompt, "text": result})
    with atomic_file(paths.generations) as stream:
        stream.write(json.dumps(results, indent=1, ensure_ascii=False).encode())


def _call(command: Sequence[str], *, capture: bool = False) -> str:
    """Run a command, its output shown as it comes or returned. Raises UserError where it fails."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    result = subprocess.run(
        command, env=environment, text=True, stdout=subprocess.PIPE if capture else None, check=False
    )
    if result.returncode:
        shown = " ".join(command)
        raise UserError(f"`{shown}` ended with exit code {result.returncode}; its own message stands above")
    return result.stdout or ""


if __name__ == "__main__":
    sys.exit(main())
