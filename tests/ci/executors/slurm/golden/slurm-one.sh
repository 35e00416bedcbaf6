#!/bin/bash
#SBATCH --job-name=nightjar-gpt-s0
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=5
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/nights/n/jobs/gpt-s0/slurm-%j.log

case "${SLURM_ARRAY_TASK_ID:-0}" in
0)
  folder=/nights/n/jobs/gpt-s0
  export A='$HOME `x`'
  export NIGHTJAR_SEED=0
  command=(nightjar-models train gpt_tiny --set 'text=it'"'"'s here' --out /nights/n/jobs/gpt-s0)
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

started=$EPOCHREALTIME
srun --kill-on-bad-exit=1 "${command[@]}"
code=$?
rm -f "$folder/slurm.exit"
echo "$code $started $EPOCHREALTIME" >"$folder/slurm.exit"
exit "$code"
