#!/usr/bin/env bash
# A training on SLURM: one task a rank, started by srun, no torchrun in between.
#   sbatch --nodes=2 --ntasks-per-node=4 examples/cluster/slurm.sh examples/ddp_checkpoint.py --checkpoint /shared/run.pt
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --output=%x-%j.out
set -euo pipefail

# The first host serves the store; the port differs between jobs, as two of them may share that host.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}

# What torch's env:// reads, from what srun tells each task. All ranks must see the same UCC_*, UCX_* and TORCH_UCC_*.
# shellcheck disable=SC2016  # each task expands it, not this script
exec srun --kill-on-bad-exit=1 bash -c '
  export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
  exec "${PYTHON:-python}" "$@"' bash "$@"
