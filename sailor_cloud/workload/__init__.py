"""The training cost of a model: its layers in parameters, FLOPs and bytes, and in seconds on an accelerator."""

from sailor_cloud.workload.kernels import OwnRates, Program, TorchModules
from sailor_cloud.workload.models.decoders import (
    check_sequence_length,
    decoder,
    decoder_from_config,
    job_decoder,
    tp_problem,
)
from sailor_cloud.workload.models.layers import Attention, LayerCosts, layer_costs, parameter_count
from sailor_cloud.workload.profiles import ComputeProfiles, LayerTimes, learned_of

__all__ = [
    "Attention",
    "ComputeProfiles",
    "LayerCosts",
    "LayerTimes",
    "OwnRates",
    "Program",
    "TorchModules",
    "check_sequence_length",
    "decoder",
    "decoder_from_config",
    "job_decoder",
    "layer_costs",
    "learned_of",
    "parameter_count",
    "tp_problem",
]
