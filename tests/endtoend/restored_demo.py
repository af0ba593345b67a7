"""A demo whose stages take their outputs from a copy: which of them run is the same, and takes no minutes."""

import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from launch_scripts.demo.__main__ import build_parser, stages
from launch_scripts.demo.stages import Chain
from launch_scripts.demo.summary import Paths


def main() -> None:
    parser = build_parser()
    parser.add_argument("--kept", type=Path, required=True)
    args = parser.parse_args()
    paths = Paths(args.directory)

    def restore(outputs):
        for path in outputs:
            assert not path.exists(), f"{path} was not removed before it is made again"
            copy = args.kept / path.relative_to(paths.root)
            (shutil.copytree if copy.is_dir() else shutil.copy2)(copy, path)

    chain = [replace(stage, run=partial(restore, stage.outputs)) for stage in stages(paths, args)]
    Chain(paths.memory, lambda line: print(f"── {line}")).run(chain)


if __name__ == "__main__":
    sys.exit(main())
