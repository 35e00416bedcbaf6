#!/bin/bash
#SBATCH --job-name=nightjar-3-jobs
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH '--output=/nights/n/jobs/a 0/slurm-%j.log'
#SBATCH --array=0-2

case "${SLURM_ARRAY_TASK_ID:-0}" in
0)
  folder='/nights/n/jobs/a 0'
  export NIGHTJAR_SEED=0
  command=(run 0)
  ;;
1)
  folder='/nights/n/jobs/a 1'
  export NIGHTJAR_SEED=1
  command=(run 1)
  ;;
2)
  folder='/nights/n/jobs/a 2'
  export NIGHTJAR_SEED=2
  command=(run 2)
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
