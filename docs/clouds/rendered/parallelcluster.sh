#!/bin/bash
#SBATCH --job-name=nightjar-gpt_tiny-train-gpu-f32-dp16-s0
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=8
#SBATCH --mem=400G
#SBATCH --time=60
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/shared/nightjar/gpt/slurm-%j.log
#SBATCH --partition=gpu

case "${SLURM_ARRAY_TASK_ID:-0}" in
0)
  folder=/shared/nightjar/gpt
  export NIGHTJAR_JOB=gpt_tiny-train-gpu-f32-dp16-s0
  export NIGHTJAR_OUT=/out
  export NIGHTJAR_SEED=0
  command=(nightjar-models train gpt_tiny --mesh dp16 --seed 0 --out /out)
  ;;
esac

cd "$folder" || exit 73
rm -f slurm.exit
for log in stdout.log stderr.log; do
  if [ -L "$log" ] || [ ! -f "$log" ]; then rm -f "$log"; fi
done
exec >>stdout.log 2>>stderr.log
attempt=${SLURM_RESTART_COUNT:-0}
if [ "$attempt" -gt 3 ]; then
  echo "nightjar: giving up after $attempt restarts (lost nodes, preemptions)" >&2
  exit 75
fi
[ "$attempt" = 0 ] || echo "nightjar: restart $attempt, on $SLURM_JOB_NODELIST" >&2
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
if ! getent hosts "$first" >/dev/null; then
  echo "nightjar: the name of the first node, $first, does not resolve on $(hostname)" >&2
  exit 68
fi

started=$EPOCHREALTIME
srun --kill-on-bad-exit=1 --cpus-per-task=8 --label '--container-image=ghcr.io#me/nightjar:models-cuda12' --no-container-mount-home --container-env=NIGHTJAR_JOB,NIGHTJAR_OUT,NIGHTJAR_SEED "--container-mounts=$folder:/out" --gpu-bind=none sh -c 'JAX_LOCAL_DEVICE_IDS=$(seq -s , $((SLURM_LOCALID * 1)) $((SLURM_LOCALID * 1 + 0))) exec "$@"' sh "${command[@]}"
code=$?
failed=$(sed -n 's/^srun: error: .* exit code \([1-9][0-9]*\)$/\1/p' "$folder/stderr.log" | tail -n 1)
if [ "$code" = 143 ]; then code=${failed:-143}; fi
rm -f "$folder/slurm.exit"
echo "$code $started $EPOCHREALTIME" >"$folder/slurm.exit"
exit "$code"
