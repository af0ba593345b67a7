"""Packaging of megatron_glm: the trainer, its kernels and its data tools."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

setup(
    name="megatron_glm",
    version="0.1.0",
    description="Pretraining of GLM (autoregressive blank infilling) on DeepSpeed, from corpus to release",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    # `kernels` is only a folder: a package importable under that name would shadow
    # the Hugging Face package `kernels`, so glm_kernels is mapped to its place.
    packages=[
        *find_packages(include=["megatron_glm", "megatron_glm.*", "data_tools", "data_tools.*"]),
        *find_packages("kernels"),
    ],
    package_dir={"glm_kernels": "kernels/glm_kernels"},
    py_modules=["pretrain_glm"],
    package_data={"megatron_glm.release": ["templates/*"]},
    install_requires=[
        "torch>=2.10",
        "deepspeed>=0.19.3",
        "numpy>=2.0",
        "pydantic>=2.7",
        "pyyaml>=6.0",
        "rich>=13.7",
        "safetensors>=0.5",
        "tokenizers>=0.21",
        "sentencepiece>=0.2.2",  # encode_as_numpy
        "zstandard>=0.23",
        "orjson>=3.10",
        "xxhash>=3.4",
        "filelock>=3.12",
        "matplotlib>=3.9",
    ],
    extras_require={
        "gpu": ["triton>=3.6"],
        "release": ["transformers>=4.57"],
        "mpi": ["mpi4py>=4.0"],
        "arrow": ["pyarrow>=18"],  # Parquet and saved Hugging Face datasets
        "fast": ["gigatoken>=0.10", "nanotoken>=0.1", "pysimdjson>=7.0"],  # BPE, WordPiece and JSON lines
        "sentences": ["nupunkt>=0.8"],  # preprocess --sentences
        "benchmarks": ["datatrove>=0.10"],  # a peer in benchmarks/preprocess_throughput.py
        "tracking": ["tensorboard>=2.17", "wandb>=0.18"],
        "test": [
            "pytest>=8",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "scipy>=1.13",
            "ruff>=0.9",
            "transformers>=4.57",
            "megatron-core>=0.16",
            "mpi4py>=4.0",
            "mpich>=4.3",  # mpiexec, in the environment's bin
            "pyarrow>=18",
            "nupunkt>=0.8",
            "gigatoken>=0.10",
            "nanotoken>=0.1",
            "pysimdjson>=7.0",
            "triton>=3.6",  # whose interpreter runs the kernels on a CPU
        ],
    },
    entry_points={"console_scripts": ["glm=megatron_glm.cli:main"]},
)
