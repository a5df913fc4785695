#!/bin/sh
# Runs systemd as process 1 of new namespaces. tests/systemd.sh starts this script with unshare.
#
#   machine.sh DIRECTORY FILE…
#
# The root is this machine's, under an overlay in memory that receives every change. DIRECTORY is the mount point of the overlay. The
# files are in /srv/memprof-test. The machine has only Debian's own units, starts only units that others need, and cannot change this
# kernel's settings.
set -eu
dir=$1
shift
mount -t tmpfs tmpfs "$dir"
mkdir "$dir/upper" "$dir/work" "$dir/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" "$dir/root"
mkdir "$dir/root/srv/memprof-test"
cp "$@" "$dir/root/srv/memprof-test"
cd "$dir/root"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for node in null zero full random urandom tty; do
    : >"dev/$node"
    mount --bind "/dev/$node" "dev/$node"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
rm -rf etc/systemd/system
mkdir -p etc/systemd/system
: >etc/fstab
: >etc/machine-id
# These units would configure the kernel for the whole machine.
for unit in systemd-journald-audit.socket systemd-modules-load.service systemd-udevd.service \
    systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-udev-trigger.service; do
    ln -s /dev/null "etc/systemd/system/$unit"
done
pivot_root . mnt
umount -l /mnt
cd /
echo "the machine's file systems are mounted"
exec env -i container=memprof-test "PATH=$PATH" /lib/systemd/systemd --system --unit=basic.target --log-target=console \
    --show-status=false
