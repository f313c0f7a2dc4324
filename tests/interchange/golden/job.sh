#!/bin/bash
#SBATCH --job-name=sailor-small-g1
#SBATCH --comment="sailor-cloud-run=small sailor-cloud-owner=me@example.org sailor-cloud-node=n0,n1"
#SBATCH --no-requeue
#SBATCH --time=20
#SBATCH --signal=TERM@120
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --partition=all
#SBATCH --constraint=a100
#SBATCH --gres=gpu:a100:2
#SBATCH --account=physics
#SBATCH hetjob
#SBATCH --job-name=sailor-small-g1
#SBATCH --comment="sailor-cloud-run=small sailor-cloud-owner=me@example.org sailor-cloud-node=n2"
#SBATCH --no-requeue
#SBATCH --time=20
#SBATCH --signal=TERM@120
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --gres=gpu:v100:1
#SBATCH --account=physics
umask 077
module load cuda/12.6
set -u
export PYTHONDONTWRITEBYTECODE=1
home=/shared/checkpoints/small.nodes
mkdir -p "$home"
plan="$home/plan-$SLURM_JOB_ID.json"
cat > "$plan" <<'PLAN'
…
PLAN
SAILOR_JOB_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export SAILOR_JOB_TOKEN
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_0" | head -n 1)
first=$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
export plan home first
started=()
srun --het-group=0 --kill-on-bad-exit=0 --cpu-bind=none bash -c 'exec /shared/venv/bin/python -m sailor_runtime.agent --home "$home" --plan "$plan" --group a100 --index "$SLURM_NODEID" --rendezvous "$first:29400" --shutdown-s 110' &
started+=($!)
srun --het-group=1 --kill-on-bad-exit=0 --cpu-bind=none bash -c 'exec /shared/venv/bin/python -m sailor_runtime.agent --home "$home" --plan "$plan" --group v100 --index "$SLURM_NODEID" --rendezvous "$first:29400" --shutdown-s 110' &
started+=($!)
code=0
for step in "${started[@]}"; do wait "$step" || code=$?; done
exit $code
