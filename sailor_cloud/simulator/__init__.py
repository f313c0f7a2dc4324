"""Time, memory and money of a plan: pure functions of the plan and its input data."""

from sailor_cloud.simulator.bill import bill, hours
from sailor_cloud.simulator.engines import ENGINES, Engine, Transfers, engine_named
from sailor_cloud.simulator.evaluate import Evaluation, evaluate, time_and_traffic
from sailor_cloud.simulator.memory import Held, MemoryTable, StageMemoryTable, States, memory_tables
from sailor_cloud.simulator.money import (
    NodeRate,
    egress_usd_per_byte,
    node_usd_per_hour,
    preemptions_per_hour,
    run_usd,
    service_kind,
    service_part,
    services_with,
    startup_s,
    teardown_s,
)
from sailor_cloud.simulator.scenario import Scenario
from sailor_cloud.simulator.sharding import Sharding
from sailor_cloud.simulator.stage_table import StageTable, stage_table, stage_tables
from sailor_cloud.simulator.timing.card import cut_flows, hop_pairs, ring_flows
from sailor_cloud.simulator.timing.closed_form import (
    boundary_pairs,
    boundary_s,
    busy_s,
    fill_s,
    gradient_sync_s,
    in_flight,
    pipeline_s,
    ring_s,
    zone_sync_s,
)
from sailor_cloud.simulator.timing.iteration import StageWaits, TimelineSpan
from sailor_cloud.simulator.timing.sync import Gather, between_zones, gather_delay_s, islands
from sailor_cloud.workload import tp_problem

__all__ = [
    "ENGINES",
    "Engine",
    "Evaluation",
    "Gather",
    "Held",
    "MemoryTable",
    "NodeRate",
    "Scenario",
    "Sharding",
    "StageMemoryTable",
    "StageTable",
    "StageWaits",
    "States",
    "TimelineSpan",
    "Transfers",
    "between_zones",
    "bill",
    "boundary_pairs",
    "boundary_s",
    "busy_s",
    "cut_flows",
    "egress_usd_per_byte",
    "engine_named",
    "evaluate",
    "fill_s",
    "gather_delay_s",
    "gradient_sync_s",
    "hop_pairs",
    "hours",
    "in_flight",
    "islands",
    "memory_tables",
    "node_usd_per_hour",
    "pipeline_s",
    "preemptions_per_hour",
    "ring_flows",
    "ring_s",
    "run_usd",
    "service_kind",
    "service_part",
    "services_with",
    "stage_table",
    "stage_tables",
    "startup_s",
    "teardown_s",
    "time_and_traffic",
    "tp_problem",
    "zone_sync_s",
]
