"""Journal entries as text: for `logs` before the first rank writes, and for the dashboard."""

from __future__ import annotations

from sailor_cloud.run.journal import Entry, Event

# Events that a page shows of a run; those of single resources are in its table of nodes.
MILESTONES = {
    Event.RUN_CREATED: "run created",
    Event.PROVISIONED: "nodes up",
    Event.GENERATION_STARTED: "generation {generation} started",
    Event.GENERATION_ENDED: "generation {generation} ended at step {step}",
    Event.NODES_LOST: "{why}",
    Event.NO_CAPACITY: "{message}",
    Event.REPLANNED: "decided: {choice}",
    Event.CHECKPOINT_SAVED: "checkpoint at step {step}",
    Event.RUN_RESUMED: "another controller took over",
    Event.TRAINING_FINISHED: "training ended: {outcome}",
    Event.TRAINING_FAILED: "training failed",
    Event.INTERRUPTED: "interrupted",
    Event.TORN_DOWN: "everything is gone",
}
_OTHERS = {
    Event.PROVISION_STARTED: "creating nodes",
    Event.CREATE_INTENDED: "creating {what}",
    Event.CREATED: "{what} exists",
    Event.CREATE_FAILED: "{what} could not be created: {reason}",
    Event.DEPLOY_STARTED: "connecting to the nodes",
    Event.PREFLIGHT: "devices and links are checked",
    Event.LINKS_SLOW: "links are slower than their profile",
    Event.CALIBRATED: "an iteration takes {iteration_s:.4g} s with all ranks",
    Event.JOB_SUBMITTED: "job {job_id} is in the scheduler's queue",
    Event.CLOCK_COMPARED: "this machine's clock differs from the cloud's by {ahead_s} s",
    Event.FIRST_CONTACT: "{what} showed its host key",
    Event.NOTIFIED: "a notice was sent: {notice}",
    Event.RESULTS_FETCHED: "results fetched",
    Event.JOURNAL_DAMAGED: "the journal is damaged: {why}",
    Event.TEARDOWN_STARTED: "tearing down",
    Event.DESTROY_INTENDED: "deleting {what}",
    Event.GONE: "{what} is gone",
    Event.KEPT: "{what} is kept",
    Event.TEARDOWN_FAILED: "teardown failed: {message}",
}
_ALL = MILESTONES | _OTHERS


def event_text(entry: Entry) -> str:
    """Return one line about a journal entry; only the event's name if it lacks its figures, as in older journals."""
    what = " ".join(part for part in (entry.resource.replace("_", " "), entry.key) if part)
    name = entry.event.value.replace("_", " ")
    try:
        line = _ALL[entry.event].format(**{**entry.data, "what": what})
    except (KeyError, ValueError, TypeError):
        line = f"{name} {what}".rstrip()
    return line.splitlines()[0] if line else name
