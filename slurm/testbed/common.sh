# What start and stop of the testbed share: where its files lie, and who belongs to it. Sourced by bash.

set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin" # where the daemons are
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${MPIFED_TESTBED:-/tmp/mpifed-testbed}
nodes=(n1 n2 n3 n4)
export SLURM_CONF=$folder/slurm.conf

say() { echo "testbed: $*" >&2; }

fail() {
    say "$@"
    exit 1
}

# Whether the folder is one that a testbed may remove
removable() {
    [ -e "$folder" ] || return 0
    [ -O "$folder" ] && [ ! -L "$folder" ] && [ -f "$SLURM_CONF" ] &&
        cmp -s <(head -n 1 "$SLURM_CONF") <(head -n 1 "$here/slurm.conf")
}

# The numbers of the processes of Slurm and munge here: `processes ours`, of this testbed with the steps of its jobs;
# `processes others`, of another Slurm
processes() {
    local one name whose
    for one in /proc/[0-9]*; do
        name=$(cat "$one/comm" 2>/dev/null) || continue # it has ended meanwhile
        case $name in munged | slurmctld | slurmd | slurmstepd) ;; *) continue ;; esac
        if grep -qzxF "SLURM_CONF=$SLURM_CONF" "$one/environ" 2>/dev/null; then
            whose=ours
        elif grep -qz . "$one/environ" 2>/dev/null; then # else it is about to end
            whose=others
        else
            continue
        fi
        [ "$whose" != "$1" ] || [ "$whose $name" = "others munged" ] || echo "${one#/proc/}"
    done
}

# Wait for a condition for some seconds: patiently SECONDS COMMAND...
patiently() {
    local until=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$until" ] || return 1
        sleep 0.2
    done
}
