"""A small cluster of three node groups, and a job that trains on it within seconds."""

from __future__ import annotations

INVENTORY = """
name: lab
scheduler: slurm
as_of: 2026-11-24
groups:
  a100: {accelerator: A100-40, nodes: 2, devices_per_node: 2, gbit_per_s: 25, device_link_gb_per_s: 600,
         usd_per_hour: 1.0, partition: all, constraint: a100, gres: "gpu:a100"}
  v100: {accelerator: V100-16, nodes: 1, devices_per_node: 1, gbit_per_s: 25, usd_per_hour: 0.5, gres: "gpu:v100"}
  titan: {accelerator: Titan-RTX-24, nodes: 1, devices_per_node: 1, gbit_per_s: 10, constraint: titan}
links:
  - {between: [a100, titan], gbit_per_s: 1, rtt_ms: 0.5}
runtime: {python: /shared/venv/bin/python, modules: [cuda/12.6]}
checkpoints: /shared/checkpoints
account: physics
"""

JOB = """
name: small
model: {model_type: gpt2, vocab_size: 256, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2,
        max_position_embeddings: 32}
data: {source: synthetic}
training: {global_batch_size: 8, sequence_length: 32, steps: 30, learning_rate: 1.0e-3, precision: fp32}
constraints: {budget_usd: 5.00, deadline: 10m}
checkpoint: {every: 1s, keep: 2}
cloud: {owner: me@example.org}
resources:
  - {provider: local, zones: [local-a], markets: [on-demand], accelerators: {CPU-slow: 1}}
"""
