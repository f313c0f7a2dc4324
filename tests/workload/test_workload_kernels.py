"""Layer times in half precision: products, attention, memory traffic, launches and collectives."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from sailor_cloud import catalog, resources
from sailor_cloud.errors import DataError, RequestError
from sailor_cloud.model.job import ModelSource
from sailor_cloud.model.offer import Precision
from sailor_cloud.workload import Attention, Program, decoder, kernels, layer_costs, profiles

CATALOG = catalog.load()
GENERATIONS = profiles.load().generations
LLAMA = decoder(ModelSource(preset="sailor-llama-3-8"))
OPT = decoder(ModelSource(preset="sailor-opt-350"))


def times(accelerator: str = "H100-80", program: Program | None = None, model=LLAMA, **changes):
    part = changes.pop("part", CATALOG.accelerator(accelerator))
    constants = dataclasses.replace(kernels.generation_of(part, GENERATIONS).constants, **changes.pop("constants", {}))
    shape = {"sequence_length": 4096, "microbatch_size": 2, "tp": 1, "precision": Precision.BF16, **changes}
    return kernels.kernel_times(part, model, constants, program=program or Program(), **shape)


def block(found: kernels.KernelTimes) -> float:
    return float(found.forward_s[1] + found.backward_s[1])


def test_a_large_block_takes_no_less_than_its_flops_at_the_peak_rate_and_no_more_than_four_times_that() -> None:
    costs = layer_costs(LLAMA, 4096, 1, attention=Attention.FLASH)
    least = 2 * float(costs.forward_flops[1] + costs.backward_flops[1]) / 989.4e12
    assert least < block(times()) < 4 * least


def test_a_backward_pass_takes_about_twice_the_forward_pass() -> None:
    found = times()
    assert 1.9 < found.backward_s[1] / found.forward_s[1] < 2.6


def test_a_small_block_takes_as_long_as_its_launches() -> None:
    small = {"model": OPT, "sequence_length": 64, "microbatch_size": 1}
    launch = kernels.generation_of(CATALOG.accelerator("H100-80"), GENERATIONS).constants.launch_s
    assert block(times(**small)) == pytest.approx(launch, rel=0.1)
    assert block(times(program=Program(launch_factor=2.0), **small)) == pytest.approx(2 * launch, rel=0.1)
    assert block(times(program=Program(more_launch_s=0.01), **small)) == pytest.approx(launch + 0.01, rel=0.1)


def as_modules(accelerator: str, **changes: float) -> kernels.TorchModules:
    """What modules of torch take, as much as the common constants say but for the changes."""
    constants = kernels.generation_of(CATALOG.accelerator(accelerator), GENERATIONS).constants
    common = {
        "launch_factor": 1.0,
        "layer_norm_passes": constants.eager_passes,
        "rms_norm_passes": constants.eager_passes,
        "logit_bytes": constants.logit_bytes,
        "update_bytes": constants.update_bytes,
        "sum_bytes": 0.0,
        "product_factor": 1.0,
        "attention_factor": 1.0,
    }
    return kernels.TorchModules(**{**common, **changes})


def test_modules_of_torch_replace_the_common_constants_one_by_one() -> None:
    def run(accelerator: str = "H100-80", model=LLAMA, **changes: float) -> kernels.KernelTimes:
        return times(accelerator, Program(modules=as_modules(accelerator, **changes)), model)

    assert block(run()) == pytest.approx(block(times()), rel=1e-12)
    # Gradients of a microbatch are added up on the way back: so many bytes per parameter at 3350 GB/s.
    costs = layer_costs(LLAMA, 4096, 1, attention=Attention.FLASH)
    added = run(sum_bytes=12.0).backward_s - run().backward_s
    np.testing.assert_allclose(added, 12.0 * costs.trainable / 3.35e12, rtol=1e-9)
    np.testing.assert_array_equal(run(sum_bytes=12.0).forward_s, run().forward_s)
    assert run(logit_bytes=100.0).forward_s[-1] > run().forward_s[-1]
    assert run(update_bytes=71.2).update_s[1] == pytest.approx(71.2 / 35.6 * run().update_s[1], rel=1e-2)
    # The Llama has RMS norms, OPT has layer norms.
    assert block(run(rms_norm_passes=20.0)) > 1.2 * block(run())
    assert block(run(layer_norm_passes=20.0)) == block(run())
    assert block(run(model=OPT, layer_norm_passes=20.0)) > 1.2 * block(run(model=OPT))
    # Newer kernels were timed on an H100; older GPUs keep the published rate.
    assert block(run(product_factor=0.5)) < 0.8 * block(run())
    assert block(run("A100-40", product_factor=0.5)) == block(run("A100-40"))
    small = {"model": OPT, "sequence_length": 64, "microbatch_size": 1}
    slow = Program(modules=as_modules("H100-80", launch_factor=2.0))
    assert block(times(program=slow, **small)) == pytest.approx(2.0 * block(times(**small)), rel=0.02)


def own_rates(capability: float, product: float = 1.0, attention: float = 1.0) -> kernels.OwnRates:
    return kernels.OwnRates(compute_capability=capability, product_factor=product, attention_factor=attention)


def test_a_programs_own_rates_hold_from_their_accelerators_on() -> None:
    program = Program(rates=(own_rates(8.0, product=0.9), own_rates(9.0, product=0.5)))
    factors = {"V100-32": 1.0, "A100-80": 0.9, "L4-24": 0.9, "H100-80": 0.5, "B200-180": 0.5}
    for accelerator, factor in factors.items():
        share = kernels.generation_of(CATALOG.accelerator(accelerator), GENERATIONS).constants.matmul_share
        by_hand = times(accelerator, precision=Precision.FP16, constants={"matmul_share": share / factor})
        assert block(times(accelerator, program, precision=Precision.FP16)) == pytest.approx(block(by_hand), rel=1e-12)
    faster = Program(rates=(own_rates(9.0, attention=0.5),))
    assert block(times(program=faster)) < block(times())
    # Kept scores are products.
    plain = Program(attention=Attention.PLAIN)
    assert block(times(program=dataclasses.replace(faster, attention=Attention.PLAIN))) == block(times(program=plain))


def test_a_programs_own_loss_changes_the_head_alone() -> None:
    common, own = times(), times(program=Program(logit_bytes=52.0))
    logits = 2 * 4096 * LLAMA.vocab_size
    known = kernels.generation_of(CATALOG.accelerator("H100-80"), GENERATIONS).constants.logit_bytes
    added = own.forward_s[-1] + own.backward_s[-1] - common.forward_s[-1] - common.backward_s[-1]
    assert added == pytest.approx((52.0 - known) * logits / 3.35e12)
    assert block(own) == block(common)


def test_tensor_parallelism_cuts_a_block_by_less_than_its_degree_and_slower_links_cut_it_less() -> None:
    whole, half = block(times()), block(times(tp=2))
    slow = dataclasses.replace(CATALOG.accelerator("H100-80"), nvlink_gb_per_s=None)
    assert whole / 2 < half < whole
    assert block(times(tp=2, part=slow)) > half


def exchanged_s(accelerator: str, tp: int, **changes) -> float:
    """Seconds that a block spends on all-reduces of tensor parallelism."""
    found = times(accelerator, tp=tp, precision=Precision.FP16, constants={"step_s": 0.0}, **changes)
    return found.exchange_share * block(found)


def test_an_all_reduce_gets_the_links_that_its_devices_share() -> None:
    # The bytes over a ring grow as 2 (n - 1) / n; a V100's groups of 2, 4 and 8 have 1, 4 and 6 of its links.
    pair, four, eight = (exchanged_s("V100-32", tp) for tp in (2, 4, 8))
    assert pair / four == pytest.approx((1 / 2 / 1) / (3 / 4 / 4), rel=1e-6)
    assert eight / four == pytest.approx((7 / 8 / 6) / (3 / 4 / 4), rel=1e-6)
    assert exchanged_s("H100-80", 4) / exchanged_s("H100-80", 2) == pytest.approx(1.5, rel=1e-6)
    # Four RTX 3090 reduce over PCIe, though bridges join pairs of them.
    card = CATALOG.accelerator("RTX-3090-24")
    assert kernels.ring_rate(card, 4, 0.9) == kernels.ring_rate(CATALOG.accelerator("L4-24"), 4, 0.9)
    assert kernels.ring_rate(card, 2, 0.9) == pytest.approx(0.9 * 56.25e9)


def test_a_measured_rate_of_the_ring_goes_before_that_of_its_links() -> None:
    assert exchanged_s("V100-32", 2, ring_bytes_per_s=50e9) == pytest.approx(
        exchanged_s("V100-32", 2) * 25 * 0.878 / 50
    )


def test_rings_over_the_links_reach_what_published_all_reduces_did() -> None:
    share = kernels.generation_of(CATALOG.accelerator("V100-32"), GENERATIONS).constants.link_share
    four_way = dataclasses.replace(CATALOG.accelerator("V100-32"), node_links=CATALOG.accelerator("GH-96").node_links)
    # GB/s of Jean Zay's nodes of four V100, and of eight A100 (published_collectives.csv).
    assert kernels.ring_rate(four_way, 4, share) == pytest.approx(123.8e9, rel=0.07)
    assert kernels.ring_rate(CATALOG.accelerator("A100-80"), 8, share) == pytest.approx(234.9e9, rel=0.13)


def test_plain_attention_fused_kernels_and_sequence_parallelism_show() -> None:
    assert block(times(program=Program(attention=Attention.PLAIN))) > block(times())
    assert block(times(program=Program(fused=True))) < block(times())
    shared = Program(sequence_parallel=True)
    assert block(times(tp=4, program=shared)) < block(times(tp=4))


def test_a_partial_wave_of_tiles_costs_small_products_more_than_large_ones() -> None:
    def lost(size: int) -> float:
        shape = {"microbatch_size": size, "tp": 8}
        full = {"launch_s": 0.0, "launch_tensor_parallel_s": 0.0}
        return block(times(**shape, constants=full)) / block(times(**shape, constants={**full, "partial_wave": 0.0}))

    assert lost(1) > lost(8) > 1.0


def test_each_pass_adds_up_over_what_a_block_does() -> None:
    nothing = {"matmul_passes": 0.0, "partial_wave": 0.0, "eager_passes": 0.0, "launch_s": 0.0}
    products = times(constants={**nothing, "flash_share": 1e9})
    costs = layer_costs(LLAMA, 4096, 1, attention=Attention.FLASH)
    share = kernels.generation_of(CATALOG.accelerator("H100-80"), GENERATIONS).constants.matmul_share
    assert products.forward_s[1] == pytest.approx(2 * costs.matmul_flops[1] / (share * 989.4e12), rel=1e-3)
    np.testing.assert_allclose(products.backward_s[1:-1], 2 * products.forward_s[1:-1], rtol=1e-3)


def test_unmeasured_layers_say_so_and_are_less_certain_the_further_away_measurements_are() -> None:
    known = profiles.load()
    errors = known.errors
    assert errors.accelerator > 0.0
    assert errors.precision > 0.0
    fsdp, deepspeed = Program(name="fsdp"), Program(name="deepspeed")
    nearer = {
        ("A100-40", Precision.BF16, fsdp): errors.layers,
        ("V100-32", Precision.FP16, deepspeed): errors.layers,
        ("V100-32", Precision.FP16, fsdp): math.hypot(errors.layers, errors.program),
        ("H200-141", Precision.BF16, fsdp): math.hypot(errors.layers, errors.accelerator),
        ("H100-80", Precision.FP16, fsdp): math.hypot(errors.layers, errors.precision),
        ("H200-141", Precision.FP16, fsdp): math.hypot(errors.layers, errors.accelerator, errors.precision),
        ("H200-141", Precision.BF16, deepspeed): math.hypot(errors.layers, errors.accelerator, errors.program),
        ("L4-24", Precision.BF16, fsdp): errors.layers_unmeasured,
        ("B200-180", Precision.BF16, fsdp): errors.layers_unmeasured,
        ("B300-288", Precision.BF16, deepspeed): errors.layers_unmeasured,
        ("P100-16", Precision.FP16, fsdp): errors.layers_unmeasured,
    }
    for (name, precision, program), expected in nearer.items():
        found = known.layer_times(
            CATALOG.accelerator(name),
            OPT,
            sequence_length=2048,
            microbatch_size=1,
            tp=1,
            precision=precision,
            program=program,
        )
        assert found.error == pytest.approx(expected), (name, precision, program)
        near = expected in (errors.layers, math.hypot(errors.layers, errors.program))
        assert found.measured is near, (name, precision, program)
    assert "not measured" in kernels.generation_of(CATALOG.accelerator("B200-180"), GENERATIONS).source


def test_an_accelerator_older_than_all_generations_has_the_oldest_ones_constants() -> None:
    assert kernels.generation_of(CATALOG.accelerator("P100-16"), GENERATIONS) == GENERATIONS[0]


def test_a_precision_that_an_accelerator_lacks_is_refused() -> None:
    with pytest.raises(RequestError, match="V100-16 can't compute in bf16"):
        times("V100-16")


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    shipped = (resources.data_root() / "compute_profiles" / kernels.FILE).read_text(encoding="utf-8")
    path = tmp_path / kernels.FILE
    path.write_text(shipped.replace("matmul_share", "share"), encoding="utf-8")
    with pytest.raises(DataError, match="not a table of kernel constants: KeyError"):
        kernels.read_generations(path)
