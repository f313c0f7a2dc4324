"""Plans as what schedulers and other programs take: a batch script, a job group, torchtitan's options."""

from __future__ import annotations

import json
import math
import os
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import Command
from click.testing import CliRunner

from factories.called import called
from factories.clusters import INVENTORY, JOB
from factories.plans import node, pipeline, plan, stage
from sailor_cloud import api
from sailor_cloud.catalog.clusters import with_inventory
from sailor_cloud.cli.inputs.interchange import export
from sailor_cloud.cli.runs.up import up
from sailor_cloud.errors import RequestError
from sailor_cloud.interchange.torchtitan import as_toml, differences, torchtitan_options
from sailor_cloud.launch.fleet.code import pack
from sailor_cloud.launch.fleet.job_artefact import exported_job, job_text
from sailor_cloud.launch.fleet.skypilot import skypilot_task
from sailor_cloud.launch.fleet.software import TORCH
from sailor_cloud.launch.spend.lifetime import life_s
from sailor_cloud.model.decoder import Family
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import ModelSource, Optimizer, Schedule, Training
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import Market, Precision
from sailor_cloud.model.plan import PipelineSchedule, Recompute
from sailor_cloud.model.shown import Rows
from sailor_cloud.provision import providers
from sailor_cloud.provision.providers.kubernetes.jobset import as_yaml
from sailor_cloud.provision.providers.slurm.batch import batch_script
from sailor_runtime.agent.rendezvous import Artefact
from sailor_runtime.spec import RunSpec

WHEEL = "https://example.org/sailor_cloud-1.0-py3-none-any.whl"
TRAINING = Training(global_batch_size=8, sequence_length=128, steps=10)
NODES = ["2 x lab-a100@a100", "1 x lab-v100@v100"]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path / "home"))


def on_slurm(tmp_path: Path) -> PlanDocument:
    inventory = tmp_path / "cluster.yaml"
    inventory.write_text(INVENTORY)
    job = with_inventory(
        parse_job(JOB.replace("global_batch_size: 8", "global_batch_size: 10")), on="slurm", cluster=inventory
    )
    return api.simulate_layout(job, layout="dp=5 recompute=selective", nodes=NODES).document


def on_gcp() -> PlanDocument:
    text = JOB[: JOB.index("resources:")].replace("checkpoint: {", "checkpoint: {to: gs://mine/here, ")
    text += "resources: [{provider: gcp, zones: [us-central1-a], markets: [spot], accelerators: {A100-40: 16}}]\n"
    return api.simulate_layout(parse_job(text), layout="dp=2", nodes=["2 x a2-highgpu-1g@us-central1-a"]).document


def test_a_batch_script_has_a_component_for_each_group(tmp_path: Path, golden: Callable[[str, str], str]) -> None:
    job = exported_job(on_slurm(tmp_path))
    scheduler = providers.of(job.inventory.scheduler).scheduler
    assert scheduler is not None
    script = scheduler.text(job)
    begin, end = script.index("<<'PLAN'\n") + len("<<'PLAN'\n"), script.index("\nPLAN\n")
    told, shown = script[begin:end], script[:begin] + "…" + script[end:]
    assert shown == golden("job.sh", shown)
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    drawn = [line for line in script.splitlines() if line.startswith("SAILOR_JOB_TOKEN=")]
    shell = "\n".join([*drawn, 'echo "$SAILOR_JOB_TOKEN"'])
    tokens = {subprocess.run(["bash", "-c", shell], capture_output=True, text=True).stdout for _ in range(2)}
    assert [len(token) for token in tokens] == [33, 33]
    assert json.loads(told)["token"] == ""
    path = tmp_path / "plan.json"
    path.write_text(told)
    artefact = Artefact.read(path)
    assert artefact.groups == {"a100": ["n0", "n1"], "v100": ["n2"]}
    spec = RunSpec.from_json(artefact.filled(dict.fromkeys(artefact.nodes, "192.0.2.1"), 29500))
    assert spec.world_size == 5
    assert {stage.recompute for pipeline in spec.pipelines for stage in pipeline.stages} == {(1,)}
    assert spec.checkpoint.directory == "/shared/checkpoints/small"


def test_one_group_makes_a_plain_job(tmp_path: Path) -> None:
    document = on_slurm(tmp_path)
    single = api.simulate_layout(document.job, layout="dp=2", nodes=["1 x lab-a100@a100"]).document
    job = exported_job(single)
    script = providers.of(job.inventory.scheduler).scheduler.text(job)  # type: ignore[union-attr]
    assert "hetjob" not in script
    assert "--het-group" not in script
    assert '"$SLURM_JOB_NODELIST"' in script


def test_a_batch_script_loads_modules_that_read_unset_variables(tmp_path: Path) -> None:
    script = batch_script(exported_job(on_slurm(tmp_path)))
    begin = script[script.index("umask") : script.index("export PYTHONDONTWRITEBYTECODE")]
    module = 'module() { echo "$LMOD_OF_NOBODY"; }\n'
    ran = subprocess.run(["bash", "-e", "-c", f"{module}{begin}"], env={}, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert script.index("module load") < script.index("set -u") < script.index("home=")


def test_a_container_on_slurm_sees_the_folders_and_files_of_its_job(tmp_path: Path) -> None:
    document = on_slurm(tmp_path)
    data = document.job.data.model_copy(update={"source": "/datasets/corpus"})
    saved = document.job.checkpoint.model_copy(update={"to": "/fast/checkpoints"})
    changed = replace(document, job=document.job.model_copy(update={"data": data, "checkpoint": saved}))
    job = exported_job(changed)
    assert "--container" not in batch_script(job)
    runtime = job.inventory.runtime.model_copy(update={"image": "ghcr.io#me/sailor:1", "mounts": ("/opt/site",)})
    script = batch_script(replace(job, inventory=job.inventory.model_copy(update={"runtime": runtime})))
    paths = ("/datasets/corpus", "/fast/checkpoints", "/opt/site", "/shared/checkpoints/small.nodes")
    mounts = ",".join(f"{path}:{path}" for path in paths)
    steps = [line for line in script.splitlines() if line.startswith("srun")]
    assert all(f"--container-image=ghcr.io#me/sailor:1 --container-mounts={mounts} " in step for step in steps)
    assert script.index("mkdir -p /fast/checkpoints\n") < script.index("srun")


def test_an_image_that_pyxis_would_not_find_is_refused_before_submission(tmp_path: Path) -> None:
    job = exported_job(on_slurm(tmp_path))
    runtime = job.inventory.runtime.model_copy(update={"image": "ghcr.io/me/sailor:1"})
    wrong = replace(job, inventory=job.inventory.model_copy(update={"runtime": runtime}))
    scheduler = providers.of(job.inventory.scheduler).scheduler
    assert scheduler is not None
    for refused in (lambda: scheduler.text(wrong), lambda: scheduler.check(wrong.inventory)):
        with pytest.raises(RequestError, match=r"write ghcr\.io#me/sailor:1"):
            refused()


def test_export_and_dry_run_show_what_the_scheduler_takes(tmp_path: Path) -> None:
    def told(command: Command, *arguments: str) -> str:
        return CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False).stdout

    path, job = tmp_path / "plan.json", tmp_path / "job.yaml"
    path.write_text(on_slurm(tmp_path).to_json())
    script = told(export, str(path), "--format", "slurm")
    assert script.startswith("#!/bin/bash\n#SBATCH --job-name=sailor-small-g1\n")
    with pytest.raises(RequestError, match="lab is for slurm; --format jobset needs a plan made with --on kubernetes"):
        told(export, str(path), "--format", "jobset")
    path.write_text(on_gcp().to_json())
    with pytest.raises(RequestError, match="not from an inventory; plan with --on slurm"):
        told(export, str(path), "--format", "slurm")
    job.write_text(JOB.replace("deadline: 10m", "deadline: 10m, max_nodes: 1"))
    cluster = str(tmp_path / "cluster.yaml")
    shown = told(up, str(job), "--on", "slurm", "--cluster", cluster, "--dry-run", "--json")
    assert json.loads(shown)["job"].startswith("#!/bin/bash")


def test_what_a_command_takes_from_its_callers_environment_is_a_name_in_exports_and_dry_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asks(document: PlanDocument) -> PlanDocument:
        update = {"run": "python train.py", "env": {"HF_TOKEN": None, "MODE": "fast"}}
        return replace(document, job=document.job.model_copy(update=update))

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    job = exported_job(asks(on_slurm(tmp_path)))
    script = batch_script(job)
    held = json.loads(script.split("<<'PLAN'\n")[1].split("\nPLAN\n")[0])["spec"]
    assert held["environment"] == [{"name": "HF_TOKEN", "value": None}, {"name": "MODE", "value": "fast"}]
    assert "# The command takes HF_TOKEN from the environment of sbatch" in script
    assert script.index("umask 077") < script.index("mkdir -p")
    for environment, message in (({}, "HF_TOKEN: is not set where sbatch was started"), ({"HF_TOKEN": "x"}, "")):
        line = next(line for line in script.splitlines() if line.startswith(": "))
        ran = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=False)
        assert (message in ran.stderr, ran.returncode != 0) == (True, bool(message))
    runtime = job.inventory.runtime.model_copy(update={"image": "sailor:1"})
    manifest = as_yaml(replace(job, inventory=job.inventory.model_copy(update={"runtime": runtime})))
    secret, jobset = yaml.safe_load_all(manifest)
    assert secret["kind"] == "Secret"
    (name, *_) = [line for line in manifest.splitlines() if "kubectl create secret generic" in line]
    for group in jobset["spec"]["replicatedJobs"]:
        [variable] = group["template"]["spec"]["template"]["spec"]["containers"][0]["env"]
        assert variable["name"] == "HF_TOKEN"
        assert f"generic {variable['valueFrom']['secretKeyRef']['name']} -n" in name
    group = skypilot_task(asks(on_gcp()), wheel=WHEEL)
    assert yaml.safe_load(group)["secrets"] == {"HF_TOKEN": None}
    assert not [text for text in (script, manifest, group) if "hf_secret" in text]


def test_exports_refuse_code_and_data_that_would_not_be_on_the_nodes(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for document, forms in ((on_slurm(tmp_path), ("slurm",)), (on_gcp(), ("skypilot",))):
        model = document.job.model
        assert model is not None
        for update, message in (
            ({"model": model.model_copy(update={"module": "mine:Model"})}, "model.module names code, which"),
            ({"run": "python train.py", "workdir": "."}, "the job has a workdir, which an exported job can't"),
            ({"data": document.job.data.model_copy(update={"source": "corpus"})}, "'corpus', a path that nodes"),
        ):
            path.write_text(replace(document, job=document.job.model_copy(update=update)).to_json())
            for form in forms:
                with pytest.raises(RequestError, match=message):
                    CliRunner().invoke(
                        export,
                        [str(path), "--format", form, "--wheel", WHEEL],
                        catch_exceptions=False,
                        standalone_mode=False,
                    )


def test_a_dry_run_ships_what_up_ships_and_reads_the_config_next_to_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("pass\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    document = on_slurm(tmp_path)
    model = document.job.model
    assert model is not None
    (tmp_path / "model.json").write_text(model.model_dump_json(exclude_none=True))
    named = document.job.model_copy(update={"model": ModelSource(config="model.json")})
    command = document.job.model_copy(update={"run": "python train.py", "workdir": "code"})

    def spec(script: str | None) -> dict[str, Any]:
        assert script is not None
        return dict(json.loads(script.split("<<'PLAN'\n")[1].split("\nPLAN\n")[0])["spec"])

    assert spec(job_text(replace(document, job=named), base=tmp_path))["model"]["blocks"] == 2
    packed = pack(command, tmp_path)
    assert packed is not None
    assert spec(job_text(replace(document, job=command), base=tmp_path))["code"] == f"code/{packed.sha256}"
    path = tmp_path / "plan.json"
    path.write_text(replace(document, job=named).to_json())
    for form in ("slurm", "torchtitan"):
        told = CliRunner().invoke(
            export, [str(path), "--format", form, "--wheel", WHEEL], catch_exceptions=False, standalone_mode=False
        )
        assert told.stdout


def test_a_saved_plan_on_a_cluster_is_started_by_the_command_that_plan_names(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(INVENTORY)
    (tmp_path / "job.yaml").write_text(JOB[: JOB.index("resources:")])
    on = ("--on", "slurm", "--cluster", "cluster.yaml")
    planned = called("plan", "job.yaml", *on, "-o", "plan.json", cwd=tmp_path)
    command = "sailor-cloud up job.yaml --on slurm --cluster cluster.yaml --plan plan.json"
    assert planned.stderr.splitlines()[-1] == f"next: {command}  # carries out exactly this plan"
    shown = called(*command.split()[1:], "--dry-run", cwd=tmp_path)
    assert (shown.returncode, "#SBATCH" in shown.stdout) == (0, True), shown.stderr


def on_demand(*nodes: str, layout: str, accelerators: str) -> PlanDocument:
    text = JOB[: JOB.index("resources:")].replace("checkpoint: {", "checkpoint: {to: gs://mine/here, ")
    text = text.replace("global_batch_size: 8", "global_batch_size: 9")
    text += "resources: [{provider: gcp, zones: [us-central1-a], markets: [on-demand], "
    text += f"accelerators: {{{accelerators}}}}}]\n"
    return api.simulate_layout(parse_job(text), layout=layout, nodes=list(nodes)).document


def test_a_skypilot_task_starts_an_agent_on_each_node_that_joins_the_first_one_for_a_limited_time(
    tmp_path: Path,
) -> None:
    document = on_gcp()
    task = yaml.safe_load(skypilot_task(document, wheel=WHEEL))
    assert (task["name"], task["num_nodes"]) == ("small", 2)
    assert task["resources"] == {
        "infra": "gcp/us-central1/us-central1-a",
        "instance_type": "a2-highgpu-1g",
        "accelerators": "A100:1",
        "use_spot": False,
    }
    python, home = tmp_path / "sailor-venv" / "bin" / "python", str(tmp_path)
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    environment = {
        "HOME": home,
        "PATH": os.defpath,
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.9",
    }
    ran = subprocess.run(["bash", "-c", task["run"]], env=environment, capture_output=True, text=True, check=True)
    group = "--group us-central1-a --index 1 --rendezvous 10.0.0.7:29400"
    plan = f"--home {home}/sailor-cloud --plan {home}/sailor-plan.json"
    assert ran.stdout == f"-m sailor_runtime.agent {plan} {group}\n"
    assert Artefact.read(tmp_path / "sailor-plan.json").groups == {"us-central1-a": ["n0", "n1"]}
    limit = f"timeout --foreground --kill-after=30 {math.ceil(life_s(document))} ~/sailor-venv/bin/python"
    assert limit in task["run"]
    # The agent gets one SIGTERM, with which it saves; a second one would end it at once.
    python.write_text(
        "#!/bin/bash\ntrap 'echo asked; trap \"echo again\" TERM; sleep 1; exit 0' TERM\nsleep 60 & wait\n"
    )
    short = task["run"].replace(f" {math.ceil(life_s(document))} ", " 0.5 ")
    ran = subprocess.run(["bash", "-c", short], env=environment, stdout=subprocess.PIPE, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("asked\n", 124)


def test_skypilot_gets_no_plan_whose_nodes_it_would_not_connect() -> None:
    nodes = ["1 x a2-highgpu-1g@us-central1-a", "2 x n1-standard-8:1xV100-16@us-central1-a"]
    document = on_demand(*nodes, layout="dp=3", accelerators="A100-40: 1, V100-16: 2")
    with pytest.raises(RequestError, match=r"a2-highgpu-1g \(on-demand\) in us-central1-a, n1-standard-8 .*one-zone"):
        skypilot_task(document, wheel=WHEEL)


def test_skypilot_nodes_get_the_build_of_torch_that_their_accelerator_needs() -> None:
    def installed(document: PlanDocument) -> str:
        return str(yaml.safe_load(skypilot_task(document, wheel=WHEEL))["setup"]).splitlines()[-1]

    old = on_demand("1 x n1-standard-8:1xV100-16@us-central1-a", layout="dp=1", accelerators="V100-16: 2")
    index = "--extra-index-url https://download.pytorch.org/whl/cu126"
    assert installed(old).endswith(f" torch=={TORCH}+cu126 {index}")
    assert installed(on_gcp()).endswith(f" torch=={TORCH}")


def test_skypilot_has_a_name_for_the_accelerators_of_each_instance_type() -> None:
    document = on_gcp()
    (offer,) = document.inputs.offers
    mega = replace(offer, instance_type="a3-megagpu-8g", accelerator="H100-80", accelerator_count=8)
    document = replace(document, inputs=replace(document.inputs, offers=Rows((mega,))))
    assert yaml.safe_load(skypilot_task(document, wheel=WHEEL))["resources"]["accelerators"] == "H100-MEGA:8"


def test_a_zone_that_has_only_an_id_is_a_comment_for_skypilot() -> None:
    text = JOB[: JOB.index("resources:")].replace("checkpoint: {", "checkpoint: {to: s3://mine/here, ")
    text += "resources: [{provider: aws, zones: [use1-az1], markets: [on-demand], accelerators: {V100-16: 8}}]\n"
    document = api.simulate_layout(parse_job(text), layout="dp=1", nodes=["1 x p3.2xlarge@use1-az1"]).document
    shown = skypilot_task(document, wheel=WHEEL)
    assert shown.startswith("# The plan is for the zone with id use1-az1. SkyPilot takes the zone's name")
    assert yaml.safe_load(shown)["resources"]["infra"] == "aws/us-east-1"


def test_nodes_install_a_wheel_that_is_named_and_never_a_name_of_a_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"

    def setup(*options: str) -> str:
        path.write_text(on_gcp().to_json())
        words = [str(path), "--format", "skypilot", *options]
        text = CliRunner().invoke(export, words, catch_exceptions=False, standalone_mode=False).stdout
        return str(yaml.safe_load(text)["setup"])

    # The python3 of SkyPilot's images may be older than the wheel's.
    venv = "set -e\n[ -x ~/sailor-venv/bin/pip ] || ~/.local/bin/uv venv --seed --python 3.12 ~/sailor-venv\n"
    wanted = f"{venv}~/sailor-venv/bin/pip install 'sailor-cloud[runtime,stores] @ {WHEEL}' torch=={TORCH}\n"
    assert setup("--wheel", WHEEL) == wanted
    local = tmp_path / "a.whl"
    assert setup("--wheel", str(local)) == wanted.replace(WHEEL, local.as_uri())
    for wrong in ("", "sailor-cloud", "http://example.org/a.whl", "https://example.org/a.whl'; id #", "a.whl"):
        with pytest.raises(RequestError, match="the wheel of sailor-cloud that nodes install is"):
            setup(*(["--wheel", wrong] if wrong else []))
    monkeypatch.setenv("SAILOR_CLOUD_WHEEL", WHEEL)
    assert setup() == wanted
    for text in (batch_script(exported_job(on_slurm(tmp_path))), skypilot_task(on_gcp(), wheel=WHEEL)):
        assert not [line for line in text.splitlines() if "pip install" in line and " @ " not in line]


def test_a_skypilot_task_runs_on_one_cloud_and_saves_where_all_nodes_reach(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="names no place for checkpoints"):
        skypilot_task(on_slurm(tmp_path), wheel=WHEEL)
    document = on_slurm(tmp_path)
    saved = document.job.model_copy(
        update={"checkpoint": document.job.checkpoint.model_copy(update={"to": "gs://a/b"})}
    )
    with pytest.raises(RequestError, match="SkyPilot needs a plan on a cloud"):
        skypilot_task(replace(document, job=saved), wheel=WHEEL)
    document = on_gcp()
    (offer,) = document.inputs.offers
    inputs = replace(document.inputs, offers=Rows((replace(offer, market=Market.FLEX_START),)))
    with pytest.raises(RequestError, match="the plan buys flex-start; this export has spot and on-demand nodes only"):
        skypilot_task(replace(document, inputs=inputs), wheel=WHEEL)


def test_uneven_cuts_are_lists_of_modules() -> None:
    uneven = plan(
        nodes=(node("n0"), node("n1")),
        pipelines=(pipeline(0, (stage(0, 2, "n0"), stage(2, 5, "n1")), microbatch_size=2, microbatches=4),),
    )
    options = torchtitan_options(uneven, layers=5, training=TRAINING)
    read = tomllib.loads(as_toml(options, family=Family.LLAMA))
    assert read == tomllib.loads(as_toml(options, family=Family.GPT2)) == options
    version = "# For torchtitan 0.2. torchtitan 0.3 reads no TOML, and its head is named lm_head instead of output.\n"
    assert as_toml(options, family=Family.LLAMA).startswith(f"{version}\n[")
    note = "# Modules are named as in torchtitan's llama3, which is not gpt2's: rename them.\n"
    assert as_toml(options, family=Family.GPT2).startswith(f"{version}{note}")
    assert read["parallelism"]["module_fqns_per_model_part"] == [
        ["tok_embeddings", "layers.0"],
        ["layers.1", "layers.2", "norm", "output"],
    ]
    assert read["parallelism"]["pipeline_parallel_degree"] == 2
    assert (read["training"]["local_batch_size"], read["training"]["global_batch_size"]) == (8, 8)


def test_torchtitan_accumulates_microbatches_that_are_not_pipelined() -> None:
    pipelines = [pipeline(number, (stage(0, 5, f"n{number}"),), microbatch_size=2, microbatches=4) for number in (0, 1)]
    two = plan(nodes=(node("n0"), node("n1")), pipelines=tuple(pipelines))
    training = torchtitan_options(two, layers=5, training=TRAINING)["training"]
    assert (training["local_batch_size"], training["global_batch_size"]) == (2, 16)


def test_torchtitan_gets_no_replicas_of_several_devices_and_no_fewer_microbatches_than_stages() -> None:
    nodes = tuple(node(f"n{number}") for number in range(4))
    halves = [(stage(0, 2, f"n{number}"), stage(2, 5, f"n{number + 2}")) for number in (0, 1)]
    two = plan(
        nodes=nodes,
        pipelines=tuple(pipeline(i, stages, microbatch_size=2, microbatches=4) for i, stages in enumerate(halves)),
    )
    for zero_stage in (0, 1):
        with pytest.raises(RequestError, match=rf"plan.zero_stage: is {zero_stage}; torchtitan .*with zero=3"):
            torchtitan_options(replace(two, zero_stage=zero_stage), layers=5, training=TRAINING)
    told = torchtitan_options(replace(two, zero_stage=3), layers=5, training=TRAINING)
    assert told["parallelism"]["data_parallel_shard_degree"] == 2
    few = plan(nodes=nodes[:3], pipelines=(pipeline(0, halves[0], microbatch_size=8, microbatches=1),))
    with pytest.raises(RequestError, match="runs 1 microbatches through 2 stages; torch's 1F1B needs at least as many"):
        torchtitan_options(few, layers=5, training=TRAINING)


def test_training_settings_are_exported_to_torchtitan_or_named_in_a_comment() -> None:
    one = plan(nodes=(node("n0"),), pipelines=(pipeline(0, (stage(0, 5, "n0"),), microbatch_size=2, microbatches=4),))
    told = torchtitan_options(one, layers=5, training=TRAINING)
    assert told["optimizer"] == {
        "name": "AdamW",
        "lr": TRAINING.learning_rate,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": TRAINING.weight_decay,
    }
    assert told["lr_scheduler"] == {"warmup_steps": 0, "decay_type": "cosine", "min_lr_factor": 0.1}
    assert (told["training"]["max_norm"], told["training"]["mixed_precision_param"]) == (1e9, "float32")
    job = parse_job(JOB)
    assert differences(job, one)[0] == "Not exported: model sizes, data, checkpoint, training.max_loss_rise."
    changed = TRAINING.model_copy(
        update={
            "gradient_clipping": 0.5,
            "precision": Precision.BF16,
            "schedule": Schedule.CONSTANT,
            "warmup_steps": 7,
            "seed": 3,
            "compile": True,
        }
    )
    told = torchtitan_options(one, layers=5, training=changed)
    assert (told["training"]["max_norm"], told["training"]["mixed_precision_param"]) == (0.5, "bfloat16")
    assert (told["lr_scheduler"], told["debug"]) == ({"warmup_steps": 7, "decay_ratio": 0.0}, {"seed": 3})
    assert told["compile"] == {"enable": True}
    two = plan(
        nodes=(node("n0"), node("n1")),
        pipelines=(pipeline(0, (stage(0, 2, "n0"), stage(2, 5, "n1")), microbatch_size=2, microbatches=4),),
    )
    for update, notes in (
        ({"optimizer": Optimizer.SGD, "dropout": 0.1}, ("is sgd, which torchtitan lacks", "training.dropout")),
        ({"precision": Precision.FP16}, ("precision is fp16",)),
        ({"precision": Precision.BF16}, ("without sharding in float32",)),
    ):
        other = job.model_copy(update={"training": TRAINING.model_copy(update=update)})
        shown = as_toml(told, family=Family.LLAMA, notes=differences(other, two))
        assert [note for note in notes if note not in shown] == []
        assert tomllib.loads(shown) == told


@pytest.mark.parametrize(
    ("kind", "told"),
    [(Recompute.FULL, {"mode": "full"}), (Recompute.SELECTIVE, {"mode": "selective", "selective_ac_option": "2"})],
)
def test_recomputation_of_all_stages_is_exported_to_torchtitan(kind: Recompute, told: dict[str, str]) -> None:
    stages = (stage(0, 2, "n0", recompute=kind), stage(2, 5, "n1", recompute=kind))
    nodes = (node("n0"), node("n1"))
    alike = plan(nodes=nodes, pipelines=(pipeline(0, stages, microbatch_size=2, microbatches=4),))
    assert torchtitan_options(alike, layers=5, training=TRAINING)["activation_checkpoint"] == told
    other = pipeline(0, (stages[0], stage(2, 5, "n1")), microbatch_size=2, microbatches=4)
    with pytest.raises(RequestError, match="stages recompute differently"):
        torchtitan_options(plan(nodes=nodes, pipelines=(other,)), layers=5, training=TRAINING)


def test_pipelines_that_differ_are_not_torchtitans() -> None:
    other = plan(
        nodes=(node("n0"), node("n1")),
        pipelines=(
            pipeline(0, (stage(0, 5, "n0"),), microbatch_size=2, microbatches=4),
            pipeline(1, (stage(0, 5, "n1"),), microbatch_size=2, microbatches=3),
        ),
    )
    with pytest.raises(RequestError, match=r"trains 3 x 2 samples and the first 4 x 2.*--restrict even-batches"):
        torchtitan_options(other, layers=5, training=TRAINING)


def test_sharding_of_weights_is_exported_to_torchtitan_and_unsupported_settings_are_refused() -> None:
    two = plan(
        nodes=(node("n0"), node("n1")),
        pipelines=tuple(
            pipeline(number, (stage(0, 5, f"n{number}"),), microbatch_size=2, microbatches=4) for number in (0, 1)
        ),
    )
    degrees = {}
    for zero_stage in (0, 3):
        told = torchtitan_options(replace(two, zero_stage=zero_stage), layers=5, training=TRAINING)["parallelism"]
        degrees[zero_stage] = told["data_parallel_replicate_degree"], told["data_parallel_shard_degree"]
    assert degrees == {0: (2, 1), 3: (1, 2)}
    for zero_stage in (1, 2):
        with pytest.raises(
            RequestError, match=rf"plan.zero_stage: is {zero_stage}; torchtitan shards .*max_zero_stage: 0"
        ):
            torchtitan_options(replace(two, zero_stage=zero_stage), layers=5, training=TRAINING)
    halved = replace(two, pipeline_schedule=PipelineSchedule.ZERO_BUBBLE)
    with pytest.raises(RequestError, match=r"plan.pipeline_schedule: is zero-bubble; torchtitan's"):
        torchtitan_options(halved, layers=5, training=TRAINING)
    interleaved = replace(two, pipeline_schedule=PipelineSchedule.INTERLEAVED)
    with pytest.raises(RequestError, match=r"is interleaved; the export knows stages with one range of layers"):
        torchtitan_options(interleaved, layers=5, training=TRAINING)
