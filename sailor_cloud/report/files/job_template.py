"""Job files as text, with a comment on every part."""

from __future__ import annotations

from sailor_cloud.catalog.providers import JobExample, of
from sailor_cloud.model.provider import Provider

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


def job_text(provider: Provider, answers: JobExample, *, schema: str | None) -> str:
    """Return the text of a job file for a provider's machines; editors validate it against `schema`."""
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
            _commented(f"  deadline: {answers.deadline}", "the nodes shut themselves down soon after it"),
            "resources:\n",
            f"  - provider: {provider}\n",
            f"    zones: [{', '.join(answers.zones)}]\n",
            _commented(f"    markets: [{', '.join(answers.markets)}]", _markets(provider)),
            _commented(f"    accelerators: {{{accelerators}}}", "at most this many devices per zone"),
            _cloud(provider, answers),
            _commented("checkpoint: {every: 10m, keep: 3}", "how much work a lost node can cost"),
        )
    )


def _markets(provider: Provider) -> str:
    here = of(provider).on_this_machine
    return "local nodes have no other market" if here else "spot is cheaper and may be preempted"


def _model(preset: str) -> str:
    if preset:
        data = _commented("data: {source: synthetic}", "random tokens; or a path, gs:// or s3://")
        return _commented(f"model: {{preset: {preset}}}", _OTHER_MODELS) + data
    data = _commented("data: {source: python-stdlib}", "the text of Python's own library; or a path, gs:// or s3://")
    return _commented("model:", _OTHER_MODELS) + _SMALL_MODEL + data


def _cloud(provider: Provider, answers: JobExample) -> str:
    if of(provider).on_this_machine:
        return ""
    line, comment = answers.account or ("", "")
    return "".join(
        (
            "cloud:\n",
            _commented(f"  {line}", comment) if line else "",
            _commented("  owner: me@example.org", "goes into a tag of everything that is bought"),
            _commented("  network: public-ssh", "or private: no public address, paid NAT instead"),
        )
    )


def _commented(line: str, comment: str) -> str:
    return f"{line:<{_COMMENT_COLUMN}} # {comment}\n"
