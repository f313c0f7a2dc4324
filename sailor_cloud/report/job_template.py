"""Job files as text, with a comment on every part."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What differs between job files of beginners. `model` is a preset's name; "" writes a small inline model."""

    provider: str
    name: str
    model: str
    batch: int
    sequence_length: int
    steps: int
    precision: str
    goal: str
    budget_usd: float
    deadline: str
    zones: tuple[str, ...]
    markets: tuple[str, ...]
    accelerators: tuple[tuple[str, int], ...]


PRESETS = {
    "local": Answers(
        provider="local",
        name="first-run",
        model="",
        batch=24,
        sequence_length=128,
        steps=100,
        precision="fp32",
        goal="maximize-throughput",
        budget_usd=1.0,
        deadline="10m",
        zones=("local-a", "local-b"),
        markets=("on-demand",),
        accelerators=(("CPU-fast", 1), ("CPU-slow", 1)),
    ),
    "gcp": Answers(
        provider="gcp",
        name="opt-350m",
        model="opt-350m",
        batch=256,
        sequence_length=2048,
        steps=2000,
        precision="fp16",
        goal="maximize-throughput",
        budget_usd=300.0,
        deadline="24h",
        zones=("us-central1-a", "us-central1-b"),
        markets=("spot", "on-demand"),
        accelerators=(("A100-40", 16), ("V100-16", 16)),
    ),
    "aws": Answers(
        provider="aws",
        name="opt-350m",
        model="opt-350m",
        batch=256,
        sequence_length=2048,
        steps=2000,
        precision="fp16",
        goal="maximize-throughput",
        budget_usd=300.0,
        deadline="24h",
        zones=("use1-az1", "use1-az2"),
        markets=("spot", "on-demand"),
        accelerators=(("A100-40", 16), ("V100-16", 16)),
    ),
}

_COMMENT_COLUMN = 44

_OTHER_MODELS = "or {preset: gpt2}, {config: config.json} in Hugging Face form, or inline sizes"
_SMALL_MODEL = """\
  model_type: gpt2
  vocab_size: 256
  hidden_size: 128
  num_hidden_layers: 6
  num_attention_heads: 4
  max_position_embeddings: 128
"""


def job_text(answers: Answers, *, schema: str | None) -> str:
    """Return the text of a job file; `schema` is the file that editors should check it against."""
    accelerators = ", ".join(f"{name}: {count}" for name, count in answers.accelerators)
    return "".join(
        (
            f"# yaml-language-server: $schema={schema}\n" if schema else "",
            f"name: {answers.name}\n",
            _model(answers.model),
            "training:\n",
            _commented(f"  global_batch_size: {answers.batch}", "samples per optimizer step, over all devices"),
            _commented(f"  sequence_length: {answers.sequence_length}", "tokens of a sample"),
            _commented(f"  steps: {answers.steps}", "without it only rates are known, no totals"),
            _commented("  learning_rate: 3.0e-4", "falls by a cosine; schedule: constant keeps it"),
            _commented(f"  precision: {answers.precision}", "fp32, tf32, bf16 or fp16"),
            _commented(f"goal: {answers.goal}", "one of maximize-throughput, minimize-cost, minimize-time"),
            "constraints:\n",
            _commented(f"  budget_usd: {answers.budget_usd:g}", "all-in: machines, disks, traffic, start-up, teardown"),
            _commented(f"  deadline: {answers.deadline}", "the nodes end themselves soon after it"),
            "resources:\n",
            f"  - provider: {answers.provider}\n",
            f"    zones: [{', '.join(answers.zones)}]\n",
            _commented(f"    markets: [{', '.join(answers.markets)}]", "spot is cheaper and may be taken away"),
            _commented(f"    accelerators: {{{accelerators}}}", "at most so many devices per zone"),
            _cloud(answers.provider),
            _commented("checkpoint: {every: 10m, keep: 3}", "how much work a lost node can cost"),
        )
    )


def _model(preset: str) -> str:
    if preset:
        data = _commented("data: {source: synthetic}", "random tokens; or a path, gs:// or s3://")
        return _commented(f"model: {{preset: {preset}}}", _OTHER_MODELS) + data
    data = _commented("data: {source: python-stdlib}", "the text of Python's own library; or a path, gs:// or s3://")
    return _commented("model:", _OTHER_MODELS) + _SMALL_MODEL + data


def _cloud(provider: str) -> str:
    if provider == "local":
        return ""
    project = _commented("  gcp: {project: my-project}", "the project that pays") if provider == "gcp" else ""
    return "".join(
        (
            "cloud:\n",
            project,
            _commented("  owner: me@example.org", "goes into a tag of everything that is bought"),
            _commented("  network: public-ssh", "or private: no public address, paid NAT instead"),
        )
    )


def _commented(line: str, comment: str) -> str:
    return f"{line:<{_COMMENT_COLUMN}} # {comment}\n"
