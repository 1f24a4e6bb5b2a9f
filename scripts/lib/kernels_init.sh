#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
#
# The first process of the guest of scripts/kernels. The console (ttyS0) is the kernel's; results go
# to the second serial port, so that no message of the kernel comes between.
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /var /root
/bin/busybox --install -s /bin 2>/dev/null
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t cgroup2 cgroup /sys/fs/cgroup 2>/dev/null
ln -s /run /var/run
ln -s bin /culvert/build # where tests find programs
# where a test in a namespace of its own finds cards
[ ! -e /culvert/cards ] || mount --bind /proc/self/ns/net /culvert/cards/first
chmod 1777 /tmp
exec >/dev/ttyS1 2>&1

# A required feature without a module here is part of the kernel: add_modules() has seen to that.
load_modules() {
	while read -r module; do
		insmod "/culvert/modules/$module" || return 1
	done </culvert/modules/order
	printf '%d loaded\n' "$(wc -l </culvert/modules/order)"
}

# Settings without which a warning of the kernel would go unseen.
check_settings() {
	for setting in panic_on_warn panic_on_oops; do
		read -r value <"/proc/sys/kernel/$setting"
		printf '%s %s\n' "$setting" "$value"
		[ "$value" = 1 ] || return 1
	done
	[ -s /sys/kernel/btf/vmlinux ] || return 1
	printf 'warnings end the guest; the kernel has its BTF\n'
}

printf '@@ boot %s\n' "$(uname -r)"
ip link set lo up
# shellcheck disable=SC3045 # busybox has it
ulimit -n 4096
for step in load_modules check_settings; do
	printf '@@ begin guest/%s\n' "$step"
	$step
	printf '\n@@ end guest/%s %d\n' "$step" $?
done
PATH=/culvert/bin:/bin
CULVERT_TEST_SLOW=4
export PATH CULVERT_TEST_SLOW

# A program may set O_NONBLOCK on its standard output. The pipe keeps that away from ours, which
# would lose lines.
while read -r name limit command; do
	printf '@@ begin %s\n' "$name"
	# shellcheck disable=SC2086 # words of a command
	{
		timeout -k 5 "$limit" $command </dev/null 2>&1
		echo $? >/tmp/code
	} | cat
	read -r code </tmp/code
	printf '\n@@ end %s %d\n' "$name" "$code"
done </culvert/plan
# vmxnet3 must not be shut down while the end of a namespace closes it: the kernel would panic.
while [ -e /culvert/cards ] &&
	[ "$(ip -o link | grep -c ' 52:54:00:')" -lt "$(grep -o 52:54:00: /culvert/cards/pairs | wc -l)" ]; do
	sleep 1
done
printf '@@ done\n'
dmesg >/dev/ttyS0
poweroff -f
