"""Every setting of a run, its type, its unit and its default.

The sections are frozen and refuse unknown keys; loading.py turns a violation into a one-line error.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _no_truth_value(value: Any) -> Any:
    """pydantic takes true for 1: `parallel.pipeline: true` would switch nothing on, and a dropout of true drops all."""
    if isinstance(value, bool):
        raise ValueError("a number is meant, not true or false")
    return value


Integer = Annotated[int, BeforeValidator(_no_truth_value)]
Number = Annotated[float, BeforeValidator(_no_truth_value)]
Probability = Annotated[Number, Field(ge=0.0, le=1.0)]
Positive = Annotated[Integer, Field(ge=1)]
Recompute = Literal["none", "selective", "full"]
AttentionBackend = Literal["auto", "triton", "segments", "flash-varlen", "flex", "sdpa", "reference"]


class Section(BaseModel):
    """A group of settings; unknown keys and changes after loading are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Model(Section):
    """The Transformer (DESIGN: pre-LN, tanh-GELU, learned word, position and block-position tables)."""

    num_layers: Annotated[Integer, Field(ge=1, le=10_000)]
    hidden_size: Positive
    num_attention_heads: Positive
    max_positions: Positive = Field(512, description="largest position; tables have max_positions + 1 rows")
    vocab_size: Positive | None = Field(
        None, description="rows of the word table; default: the tokenizer's size padded to a multiple of 128"
    )
    hidden_dropout: Probability = 0.1
    attention_dropout: Probability = 0.1
    initializer_range: Annotated[Number, Field(gt=0)] = 0.02

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        return self


class Tokenizer(Section):
    """Where the tokenizer lies."""

    path: str = Field(description="directory written by data_tools.train_tokenizer or import_tokenizer")


class Source(Section):
    """One corpus: a directory of ours, or existing pairs of Megatron."""

    path: str | None = Field(None, description="directory written by data_tools.preprocess")
    prefixes: Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        None, description="instead of path: existing .bin/.idx pairs without extension, or patterns of them"
    )
    held_out_prefixes: Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        None, description="pairs that are only evaluated, beside prefixes"
    )
    weight: Annotated[Number, Field(gt=0)] = Field(1.0, description="share of the samples, relative to the others")

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        if (self.path is None) == (self.prefixes is None):
            raise ValueError("give either path (written by data_tools.preprocess) or prefixes (.bin/.idx pairs)")
        if self.held_out_prefixes and not self.prefixes:
            raise ValueError("held_out_prefixes belong to prefixes; a path has held-out documents of its own")
        return self

    @property
    def name(self) -> str:
        """What messages call it: its path or prefixes."""
        return self.path if self.path is not None else " ".join(self.prefixes or ())


class Phase(Section):
    """What changes from a sample on; what it does not give stays as it was."""

    from_sample: Annotated[Integer, Field(ge=1, le=10**18)] = Field(
        description="global sample with which the phase begins"
    )
    sources: Annotated[tuple[Source, ...], Field(min_length=1)] | None = Field(
        None, description="all sources of the phase; default: those before"
    )
    window: Annotated[Integer, Field(ge=2)] | None = Field(
        None, description="raw tokens of a sample; default: as before"
    )
    objective: dict[str, Any] = Field(default_factory=dict, description="the settings of `objective` that change")


class Data(Section):
    """What is read, and how it is cut into samples."""

    sources: Annotated[tuple[Source, ...], Field(min_length=1)]
    window: Annotated[Integer, Field(ge=2)] = Field(512, description="raw tokens of a sample, at most")
    phases: tuple[Phase, ...] = Field((), description="what changes in the course of the run, by first sample")
    isolate_documents: bool = Field(True, description="each document piece of a window sees only itself")
    prefetch: Annotated[Integer, Field(ge=0, le=128)] = Field(  # sockets to workers hold twice as many
        2, description="steps prepared ahead; 0: none without workers"
    )
    workers: Annotated[Integer, Field(ge=0, le=256)] = Field(
        0, description="processes that prepare steps; 0: a thread does"
    )
    skip_samples: tuple[tuple[Integer, Integer], ...] = Field(
        (), description="ranges [first, end) of global samples that are left out"
    )

    @model_validator(mode="after")
    def _skips_ranges(self) -> Self:
        for number, (first, end) in enumerate(self.skip_samples):
            if not 0 <= first < end <= 2**62:
                raise ValueError(
                    f"skip_samples[{number}]: [{first}, {end}] is no range; give [first, end] with 0 ≤ first < end"
                )
        return self


class Objective(Section):
    """The blank-infilling mixture (GLM paper, sections 2.1.1 and 2.1.2)."""

    token: Probability = Field(1.0, description="probability of short spans behind [MASK]")
    sentence: Probability = Field(0.0, description="probability of whole sentences behind [sMASK]")
    document: Probability = Field(0.0, description="probability of one long span behind [gMASK]")
    token_ratio: Annotated[Number, Field(gt=0, lt=1)] = Field(0.15, description="least masked share, token objective")
    mean_span: Annotated[Number, Field(gt=0)] = Field(3.0, description="Poisson mean of a span's length, in tokens")
    sentence_ratio: Annotated[Number, Field(gt=0, lt=1)] = Field(
        0.15, description="least masked share, sentence objective"
    )
    document_min_ratio: Annotated[Number, Field(gt=0, le=1)] = Field(
        0.5, description="least masked share, document objective"
    )
    prefix_probability: Probability = Field(0.5, description="share of document spans in prefix form")
    max_spans: Positive = Field(40, description="spans of a sample, at most; a window of 1024 needs 80")
    shuffle_spans: bool = Field(True, description="part B holds the spans in random order")
    task_masks: bool = Field(True, description="[sMASK] and [gMASK] for their objectives; false: [MASK] for all")
    block_mask_probability: Probability = Field(0.0, description="B inputs replaced by [dBLOCK], token objective")
    short_sequence_probability: Probability = Field(0.0, description="samples cut into short sequences")
    single_span_probability: Probability = Field(0.0, description="samples with one short span a segment")

    @model_validator(mode="after")
    def _probabilities_sum_to_one(self) -> Self:
        total = self.token + self.sentence + self.document
        if abs(total - 1.0) > 1e-6:
            raise ValueError(
                f"token {self.token} + sentence {self.sentence} + document {self.document} = {total:g}, must be 1"
            )
        return self


class Optimizer(Section):
    """AdamW; norms and biases are not decayed."""

    learning_rate: Annotated[Number, Field(gt=0)] = Field(description="peak learning rate")
    beta1: Annotated[Number, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[Number, Field(ge=0, lt=1)] = 0.98
    eps: Annotated[Number, Field(gt=0)] = 1e-6
    weight_decay: Annotated[Number, Field(ge=0)] = 0.1
    gradient_clipping: Annotated[Number, Field(ge=0)] = Field(1.0, description="largest global norm; 0: off")
    fused: Literal["torch", "apex", "auto"] = Field("torch", description="whose fused AdamW; auto: apex where it is")


class Schedule(Section):
    """Learning rate: linear warm-up from 0, then decay to the floor, then constant."""

    decay: Literal["cosine", "linear"] = "cosine"
    warmup_steps: Annotated[Integer, Field(ge=0)] = 0
    decay_steps: Positive | None = Field(None, description="step at which the floor is reached; default: train.steps")
    floor: Probability = Field(0.1, description="lowest learning rate after warm-up, as a share of the peak")
    rewarmup_steps: Annotated[Integer, Field(ge=0)] = Field(
        0, description="steps after a load in which the rate rises again from 0 to the schedule's"
    )

    @model_validator(mode="after")
    def _decays_after_warming_up(self) -> Self:
        if self.decay_steps is not None and self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"decay_steps {self.decay_steps} must be above warmup_steps {self.warmup_steps},"
                " or the learning rate falls from its peak to the floor in one step"
            )
        return self


class Overrides(Section):
    """What `overrides.yaml` in the output of a run may change while it runs."""

    learning_rate: Annotated[Number, Field(gt=0)] | None = Field(None, description="for optimizer.learning_rate")
    floor: Probability | None = Field(None, description="for schedule.floor")


class LossScale(Section):
    """Dynamic loss scaling of fp16: halved at an overflow, doubled after a window without one."""

    initial_power: Annotated[Integer, Field(ge=0, le=32)] = Field(16, description="it starts at 2 to this power")
    window: Positive = Field(1000, description="steps without an overflow after which it doubles")
    floor: Positive = Field(1, description="it never falls below")
    patience: Positive = Field(10, description="overflows in a row at the floor after which the run stops")


class Spikes(Section):
    """What is done about a loss far above those of the steps before."""

    policy: Literal["off", "warn", "skip", "rewind"] = Field(
        "warn", description="skip: no update; rewind: back to the last checkpoint, without the samples before it"
    )
    factor: Annotated[Number, Field(gt=0)] = Field(
        10.0, description="typical deviations above the expected loss from which on it is a spike"
    )
    window: Annotated[Integer, Field(ge=4)] = Field(128, description="steps from which is known what to expect")
    patience: Positive = Field(10, description="spikes in a row after which skip and rewind stop the run")
    rewinds: Positive = Field(3, description="of a run, at most")
    rewind_steps: Positive = Field(
        100, description="steps whose samples a rewind leaves out, the last of them the spike, as far as since the save"
    )


class BatchRamp(Section):
    """Smaller batches first: the size rises with the samples consumed, in equal increments."""

    start: Positive | None = Field(None, description="samples of the first step; default: no ramp")
    increment: Positive = Field(1, description="samples a step that each stage of the ramp adds")
    samples: Positive = Field(1, description="consumed samples from which on train.global_batch_size holds")


class EmbeddingGradient(Section):
    """Shrinks the gradient that reaches the word table from the input (GLM-130B, arXiv 2210.02414, section 2.3)."""

    factor: Annotated[Number, Field(gt=0, le=1)] = Field(1.0, description="what it is multiplied by; 1: left alone")
    hold_samples: Annotated[Integer, Field(ge=0)] | None = Field(
        None, description="consumed samples from which on the factor rises; default: it never does"
    )
    rise_samples: Positive = Field(1, description="samples over which it then rises linearly to 1")


class Train(Section):
    """The run."""

    output: str = Field(description="directory of metrics, plots and checkpoints")
    steps: Positive
    global_batch_size: Positive = Field(description="samples a step")
    micro_batch_size: Positive = Field(description="samples of one forward pass on one replica")
    seed: Annotated[Integer, Field(ge=0, lt=2**63)] = 1234
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    loss: Literal["per_objective", "per_token"] = Field("per_objective", description="what the mean is taken over")
    label_smoothing: Annotated[Number, Field(ge=0, lt=1)] = Field(
        0.0, description="share of a target's distribution that is uniform over the tokenizer's ids; training only"
    )
    recompute: Recompute = Field("none", description="activation checkpointing: of nothing, attention, whole layers")
    attention_backend: AttentionBackend = Field("auto", description="what computes attention; auto: by device")
    fused_norm: Literal["torch", "apex", "auto"] = Field(
        "torch", description="whose kernel computes the norms; auto: apex where it is"
    )
    compile: Literal["auto", "always", "never"] = Field(
        "auto", description="norms and bias + GELU by torch.compile; auto: on a GPU, if it can there"
    )
    loss_scale: LossScale = LossScale()
    nonfinite_patience: Positive = Field(
        3, description="steps in a row without a finite loss and gradient after which the run stops"
    )
    spikes: Spikes = Spikes()
    batch_ramp: BatchRamp = BatchRamp()
    embedding_gradient: EmbeddingGradient = EmbeddingGradient()
    log_interval: Positive = Field(10, description="steps")
    eval_interval: Positive = Field(1000, description="steps")
    replica_check_interval: Positive = Field(
        1000, description="steps after which all that ranks hold twice is compared, at every save besides"
    )
    eval_samples: Positive = Field(256, description="held-out windows of an evaluation, once per objective")
    threads: Annotated[Integer, Field(ge=1, le=4096)] | None = Field(
        None, description="CPU threads of a process; default: torch's choice"
    )
    exit_after_minutes: Annotated[Number, Field(gt=0)] | None = Field(
        None, description="since this start, after which the run saves and stops"
    )
    exit_after_steps: Positive | None = Field(None, description="steps of this start, after which it saves and stops")
    watchdog_seconds: Annotated[Number, Field(gt=0)] | None = Field(
        1800.0, description="without progress, after which every rank writes its stacks and ends"
    )
    straggler_factor: Annotated[Number, Field(gt=1)] = Field(
        1.5, description="of the median rank's time outside collectives, from which a rank is reported"
    )

    @model_validator(mode="after")
    def _ramp_ends_at_the_batch(self) -> Self:
        ramp, batch = self.batch_ramp, self.global_batch_size
        if ramp.start is None:
            return self
        if ramp.start >= batch:
            raise ValueError(f"batch_ramp.start {ramp.start} must be below global_batch_size {batch}")
        if rest := (batch - ramp.start) % ramp.increment:
            raise ValueError(
                f"batch_ramp: steps of increment {ramp.increment} from start {ramp.start} miss global_batch_size"
                f" {batch}; nearest start is {ramp.start + rest}"
            )
        return self


class Parallel(Section):
    """How the work is spread over processes."""

    zero_stage: Annotated[Literal[0, 1, 2, 3], BeforeValidator(_no_truth_value)] = 1
    tensor: Positive = Field(1, description="ranks that share each layer: its heads, features and words")
    sequence: bool = Field(False, description="these ranks also divide the tokens between the layers")
    offload_optimizer: Literal["none", "cpu"] = Field(
        "none", description="where fp32 weights and moments are kept and updated; none: where the model is"
    )
    pipeline: Positive = Field(1, description="stages of consecutive layers through which a micro-batch passes")
    stage_costs: Literal["measured", "counted"] = Field(
        "measured", description="of layers, by which they are divided over the stages"
    )
    stage_layers: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = Field(
        None, description="layers of each stage, instead of a division by cost"
    )

    @model_validator(mode="after")
    def _sequence_needs_tensor(self) -> Self:
        if self.sequence and self.tensor == 1:
            raise ValueError("sequence: true divides tokens over the ranks of parallel.tensor, which is 1; raise it")
        return self


class Checkpoint(Section):
    """When to save, what to keep and where to start from."""

    save_interval: Positive | None = Field(None, description="steps; default: only at the end")
    background: bool = Field(True, description="written while training goes on, from a copy in the host's memory")
    keep_last: Annotated[Integer, Field(ge=2)] | None = Field(
        None, description="newest checkpoints of the run that are kept; default: all"
    )
    keep_every: Positive | None = Field(
        None, description="beside them, those are kept whose step is a multiple of this"
    )
    resume: str = Field("auto", description="auto, must, never, or the path of a checkpoint")
    strict: bool = Field(False, description="a damaged checkpoint is an error; false: the one before is taken")
    allow_changes: tuple[str, ...] = Field(
        (), description="settings or sections that may differ from those of the checkpoint that is continued"
    )
    init_from: str | None = Field(
        None, description="checkpoint, or file of the original GLM, whose weights a new run starts with"
    )

    @model_validator(mode="after")
    def _keeps_every_beside_the_last(self) -> Self:
        if self.keep_every and not self.keep_last:
            raise ValueError("keep_every goes with keep_last; without that, all checkpoints are kept")
        return self


class Config(Section):
    """A whole run."""

    model: Model
    tokenizer: Tokenizer
    data: Data
    objective: Objective = Objective()
    optimizer: Optimizer
    schedule: Schedule = Schedule()
    train: Train
    parallel: Parallel = Parallel()
    checkpoint: Checkpoint = Checkpoint()
    deepspeed: dict[str, Any] = Field(default_factory=dict, description="merged last into DeepSpeed's own JSON")
