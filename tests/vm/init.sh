#!/bin/busybox sh
# shellcheck shell=dash
# The first process of a guest: mounts what memprof and its scenarios need, runs the check, prints its exit
# status, and powers the guest off. The results go to the second serial port; on 64-bit ARM there is only one.
/bin/busybox mkdir -p /proc /sys /dev /tmp /ramfs /disk
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev
results=/dev/ttyS1
[ "$(uname -m)" != aarch64 ] || results=/dev/ttyAMA0
exec </dev/null >$results 2>&1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /tmp
mount -t ramfs ramfs /ramfs
mount -t tracefs nodev /sys/kernel/tracing
mount -t debugfs nodev /sys/kernel/debug
mount -t bpf nodev /sys/fs/bpf
for module in /modules/*; do
    insmod "$module" || echo "$module cannot be loaded"
done
mount -t ext4 /dev/vda /disk
ifconfig lo 127.0.0.1 up
read -r nonce limit wanted </vm-settings
echo "guest $(uname -r)"
# Once nothing has been printed for so many seconds, something hangs: says which processes there are, and where each waits.
(
    size=0 silent=0
    while [ "$silent" -lt "$limit" ]; do
        sleep 10
        silent=$((silent + 10))
        now=$(wc -c </tmp/said)
        [ "$now" = "$size" ] || { size=$now && silent=0; }
    done
    printf 'result: hangs, silent for %s s. Processes:' "$silent"
    for process in /proc/[0-9]*; do
        command=$(tr '\0' ' ' <"$process/cmdline" | cut -c 1-40)
        [ -z "$command" ] || printf ' %s(%s)' "$command" "$(cat "$process/wchan")"
    done
    echo
    for thread in /proc/[0-9]*/task/*; do
        case $(cat "$thread/comm") in
        memprof* | tezos* | pseudo* | tokio*) echo "$thread $(cat "$thread/comm") $(cat "$thread/wchan")" && cat "$thread/stack" ;;
        esac
    done
    [ ! -s /tmp/log ] || cat /tmp/log
    echo "VM-EXIT:$nonce:1"
    poweroff -f
) &
: >/tmp/said
{ sh /check.sh "$wanted" 2>&1 && echo 0 >/tmp/status || echo $? >/tmp/status; } | tee /tmp/said
echo "VM-EXIT:$nonce:$(cat /tmp/status)"
sync
poweroff -f
