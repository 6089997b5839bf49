#!/bin/bash
#SBATCH --job-name="demo"
#SBATCH --comment="prorl:0123456789ab"
#SBATCH --open-mode="append"
#SBATCH --signal="B:USR2@660"
#SBATCH --partition="cpu"
#SBATCH --time="2-00:00:00"
#SBATCH --nodes="2"
#SBATCH --ntasks-per-node="1"
#SBATCH --propagate="NONE"
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH hetjob
#SBATCH --partition="gpu"
#SBATCH --time="2-00:00:00"
#SBATCH --nodes="2"
#SBATCH --ntasks-per-node="1"
#SBATCH --propagate="NONE"
#SBATCH --gres="gpu:8"
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH hetjob
#SBATCH --partition="gpu"
#SBATCH --time="2-00:00:00"
#SBATCH --nodes="2"
#SBATCH --ntasks-per-node="1"
#SBATCH --propagate="NONE"
#SBATCH --gres="gpu:8"
#SBATCH --exclusive
#SBATCH --requeue

# Rendered by prorl for one submission. Slurm runs it again, unchanged, when it requeues the job.
# It starts prorl's own supervisor, hands on the signals of Slurm, and leaves the exit code in a file.

prorl_supervisor=
prorl_early=
prorl_record=/scratch/lab/runs/demo/job/submitted-0123456789ab/batch.json

prorl_hand_on() {
    if [ -n "$prorl_supervisor" ]; then
        kill -s "$1" "$prorl_supervisor" 2>/dev/null
    else
        prorl_early="$prorl_early $1"
    fi
}

prorl_leave_record() {
    printf '{"code": %d, "job": %d, "restart": %d, "ended": %d}\n' \
        "$1" "${SLURM_JOB_ID:-0}" "${SLURM_RESTART_COUNT:-0}" "$(date +%s)" >"$prorl_record.$$" &&
        mv -f "$prorl_record.$$" "$prorl_record"
}

for prorl_signal in USR2 TERM INT HUP CONT; do
    trap "prorl_hand_on $prorl_signal" "$prorl_signal"
done
trap 'prorl_leave_record "$?"' EXIT

# What the recipe's `cluster.setup` asks for.


/home/lab/venv/bin/python -m prorl_cli.slurm /scratch/lab/runs/demo 0123456789ab </dev/null &
prorl_supervisor=$!
for prorl_signal in $prorl_early; do
    kill -s "$prorl_signal" "$prorl_supervisor" 2>/dev/null
done

# `wait` also returns when a signal came; the supervisor has ended only when it is no more.
while :; do
    wait "$prorl_supervisor"
    prorl_code=$?
    kill -0 "$prorl_supervisor" 2>/dev/null || break
done
wait "$prorl_supervisor" 2>/dev/null
prorl_last=$?
[ "$prorl_last" -eq 127 ] || prorl_code=$prorl_last
exit "$prorl_code"
