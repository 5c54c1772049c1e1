#!/usr/bin/env bash
# A training on SLURM: srun starts one task for each rank, without torchrun.
#   sbatch --nodes=2 --ntasks-per-node=4 examples/cluster/slurm.sh examples/ddp_checkpoint.py --checkpoint /shared/run.pt
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --output=%x-%j.out
set -euo pipefail

# The first host serves the store. The port differs between jobs, because two jobs may share that host.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}

# srun sets variables for each task. They become the variables that torch's env:// reads.
# Give all ranks the same UCC_*, UCX_* and TORCH_UCC_* variables.
# shellcheck disable=SC2016  # each task expands it, not this script
exec srun --kill-on-bad-exit=1 bash -c '
  export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
  exec "${PYTHON:-python}" "$@"' bash "$@"
