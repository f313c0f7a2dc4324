"""Options of a run, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sailor_cloud.run.receipt import Receipt


class Ending(StrEnum):
    """Why a run ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    BUDGET = "budget"
    DEADLINE = "deadline"
    TORN_DOWN = "torn-down"


EXIT_CODES = {
    Ending.COMPLETED: 0,
    Ending.FAILED: 1,
    Ending.INTERRUPTED: 130,
    Ending.BUDGET: 4,
    Ending.DEADLINE: 4,
    Ending.TORN_DOWN: 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Limits of the controller; times in seconds."""

    # The CIDR from which nodes on a cloud accept SSH; None: as for an earlier controller of the run.
    ssh_from: str | None = None

    poll_s: float = 0.2
    # The interval between checks of the spend.
    watch_s: float = 1.0
    connect_timeout_s: float = 90.0
    # A VM on a cloud boots and installs its driver before it answers.
    boot_timeout_s: float = 900.0
    # The shortest interval between queries to a provider whether a silent node still exists.
    ask_s: float = 1.0
    # From the start command until an agent must have begun its generation.
    agent_timeout_s: float = 30.0
    stop_timeout_s: float = 20.0
    # Nodes still cost money while they are stopped and removed; the budget guard reserves this much time.
    teardown_reserve_s: float = 60.0
    # A node that is silent for this long is given up, unless its provider reports its end before.
    lost_after_s: float = 60.0
    # The timeout of one poll of a node; afterwards it counts as not answering.
    poll_timeout_s: float = 10.0
    # After this time without any event, the controller checks whether the agents still live.
    silence_s: float = 20.0
    # From the first sign of a failure until its diagnosis: time for the other nodes to report.
    settle_s: float = 2.0
    # From a preemption notice until the generation is ended, saved or not; AWS gives 120 s, GCP 30 s.
    preemption_wait_s: float = 20.0
    # Retries after failures of the job's own code, each of which got further than the one before.
    most_retries: int = 3
    # Lost nodes and stockouts after which a run gives up.
    most_recoveries: int = 100
    # Whether another plan may replace one whose nodes are unavailable.
    fallback: bool = True
    # Whether links far below their profile are a reason to plan again.
    replan_slow_links: bool = False
    # Whether a new plan may buy at doubtful prices.
    allow_doubtful: bool = False
    # Whether to continue if the caller lacks permissions for the rest of the run.
    allow_missing_permissions: bool = False
    # Retries after errors of Terraform or a cloud's API: 10, 20, 40, 80, 160, 160 s, eight minutes in total.
    most_faults: int = 6
    fault_pause_s: float = 10.0
    longest_fault_pause_s: float = 160.0
    # How long an instance type without capacity in a zone is not tried again.
    stockout_pause_s: float = 600.0
    # The interval between checks whether a reduced plan can grow again; None: never.
    growth_interval_s: float | None = 600.0

    def fault_pause(self, failed: int) -> float | None:
        """Return the pause after this many errors in a row, or None after too many."""
        if failed > self.most_faults:
            return None
        return min(self.fault_pause_s * 2.0 ** (failed - 1), self.longest_fault_pause_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended, its receipt, and the text of the failure if there was one."""

    ending: Ending
    receipt: Receipt
    message: str = ""

    @property
    def exit_code(self) -> int:
        code = EXIT_CODES[self.ending]
        return code if self.receipt.clean or code not in (0, 4, 130) else 1
