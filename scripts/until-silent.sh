#!/usr/bin/env bash
# Runs a command and passes on what it prints. When nothing has come for LIMIT seconds, ends the command and what it started:
# exit status 124.
#
#   scripts/until-silent.sh LIMIT COMMAND…
set -uo pipefail
limit=$1
shift

# `timeout` passes a signal on to all processes of the command, and kills them 10 seconds later.
coproc timeout -k 10 30d "$@" 2>&1
command=$COPROC_PID
exec 3<&"${COPROC[0]}"
trap 'kill "$command"; wait "$command"; exit 143' TERM INT HUP

while :; do
    IFS= read -r -t "$limit" -u 3 line
    read_status=$?
    [ "$read_status" -eq 0 ] || break
    printf '%s\n' "$line"
done
# The last line may lack its newline.
printf '%s' "$line"
if [ "$read_status" -gt 128 ]; then
    printf '\nended: it has printed nothing for %s seconds\n' "$limit"
    kill "$command"
    wait "$command"
    exit 124
fi
wait "$command"
