"""Reports an agent's event to the observer and the journal."""

from __future__ import annotations

from sailor_cloud.launch.context import RunContext
from sailor_cloud.launch.fleet.run_spec import ComparisonModel, comparison_model
from sailor_cloud.launch.spend.lifetime import usd_per_hour
from sailor_cloud.launch.telemetry.events import AgentEvent
from sailor_cloud.launch.telemetry.monitor import Monitor
from sailor_cloud.launch.telemetry.preflight import preflight_note
from sailor_cloud.run.journal import Event
from sailor_cloud.units import SECONDS_PER_HOUR, usd_text


def announce(context: RunContext, event: AgentEvent, monitor: Monitor) -> None:
    """Report one event of the generation that is followed."""
    if event.get("generation") not in (None, monitor.generation):
        return
    match event["event"]:
        case "generation_started" if context.runs_command:
            context.show("starting the command")
        case "training" if context.runs_command:
            context.show("running")
            if event.get("checkpoint") and event.get("rank") == 0:
                context.observer.note(f"every node has the checkpoints, the newest of which is {event['checkpoint']}")
        case "generation_started" if monitor.generation == 1:
            _show_check(context)
        case "generation_started":
            context.show(f"starting generation {monitor.generation}")
        case "verified":
            steps = f"{event['steps']} steps"
            what = f"{steps} of {ComparisonModel.NARROW_COPY}" if event.get("narrow") else f"first {steps}"
            if event.get("passed", True):
                found = f"equal one process in float64: largest weight difference {event['max_abs_difference']:.1e}"
                context.show("calibrating")
            else:
                found = (
                    f"differ from one process in float64: by {event['max_abs_difference']:.1e} in weights, "
                    f"{event['loss_difference']:.1e} in loss and {event['norm_difference']:.1e} in gradient norm"
                )
            context.observer.note(f"{what} {found} (tolerance {event['tolerance']:.0e})")
        case "preflight":
            context.journal.append(Event.PREFLIGHT, devices=event["devices"], links=event["links"])
            context.observer.note(preflight_note(context.document, event))
        case "calibrated":
            _calibrate(context, event)
        case "training" if event.get("checkpoint") and monitor.generation == 1:
            changed = "".join(f", with {text}" for text in event.get("changed") or ())
            context.observer.note(f"continuing from {event['checkpoint']}{changed}")
        case "checkpoint":
            context.journal.append(Event.CHECKPOINT_SAVED, path=event["path"], step=event["step"])
        case "checkpoint_failed":
            context.observer.note(
                f"step {event['step']} could not be saved: {event['reason']}; training continues and will save again"
            )
        case "checkpoint_damaged":
            context.observer.note(f"{event['reason']}; continuing from the newest undamaged checkpoint")
        case "preempt_notice":
            saving = "asking the command to end" if context.runs_command else "saving a checkpoint"
            on_cluster = context.document.job.cloud.cluster is not None
            what = "the scheduler ends the job" if on_cluster else "the provider is about to preempt a node"
            context.observer.note(f"{what}; {saving}")
        case "left_behind":
            context.observer.note(
                f"the command left {event['processes']} processes running when it ended; they are ended"
            )
        case "step":
            context.trackers.event(event)
            if not context.runs_command and context.activity != "training":
                context.show("training")
            context.observer.step(context.progress())


def remaining_work_note(context: RunContext, *, limited: bool = True) -> str:
    """Return what was saved of an unfinished run, and the cost of the rest.

    `limited`: a limit of the job stopped it.
    """
    saved = context.saved_step
    if saved == 0:
        return "no checkpoint had been saved yet"
    monitor = context.monitor
    pace = (monitor.measured_iteration_s if monitor else None) or context.document.iteration_s
    todo = [] if context.document.job.checkpoint.to else ["name that folder as checkpoint.to in the job"]
    todo += ["raise the limit"] if limited else []
    how = f"{', '.join(todo)}, and start it again" if todo else "start it again"
    if context.steps is None or pace is None:
        return f"step {saved} is saved in {context.checkpoints_dir}: {how}"
    left = context.steps - saved
    usd = usd_per_hour(context.document) * left * pace / SECONDS_PER_HOUR
    return (
        f"step {saved} of {context.steps} is saved in {context.checkpoints_dir}; the other {left} iterations need "
        f"about {usd_text(usd)} USD more: {how}"
    )


def _show_check(context: RunContext) -> None:
    assert context.decoder is not None
    match comparison_model(context.document.job, context.decoder):
        case ComparisonModel.MODEL:
            context.show("checking the first steps against one process")
        case ComparisonModel.NARROW_COPY:
            context.show("checking the plan against one process")
        case ComparisonModel.NOTHING:
            context.observer.note(
                "the plan is not compared with one process: that would take too long with a model of this size, and "
                "the sizes in your own module are fixed"
            )
            context.show("calibrating")


def _calibrate(context: RunContext, measured: AgentEvent) -> None:
    prediction = context.document.prediction
    assert prediction is not None
    context.calibrated_s = float(measured["iteration_s"])
    context.journal.append(Event.CALIBRATED, iteration_s=context.calibrated_s)
    context.observer.note(
        f"iteration time: {prediction.iteration_s_replay:.3f} s planned, {context.calibrated_s:.3f} s "
        f"calibrated over {measured['iterations']} iterations with all ranks running"
    )
