#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
#
# Usage: systemd_guest.sh ROOT STAGE TREE CONSOLE [IMAGE]
#
# For systemd_guest.py, which starts it as the first process of new namespaces: makes a small system
# below ROOT, which has the programs of this one, and STAGE/usr/local for its own, and nothing else,
# and becomes its systemd. With IMAGE, a Debian in a folder, the system is a copy of that in memory,
# and has all of STAGE. TREE is /tree there. What of the kernel is not in a namespace can only be
# read.
set -eu
root=$1 stage=$2 tree=$3 console=$4 image=${5:-}

# SOURCE TARGET: to be read only
show() {
	[ -e "$2" ] || mkdir -p "$2"
	mount --bind "$1" "$2"
	mount -o remount,bind,ro "$2"
}

programs() {
	show /usr "$root/usr"
	for name in bin sbin lib lib32 lib64 libx32; do
		if [ -L "/$name" ]; then
			cp -a "/$name" "$root/$name"
		elif [ -d "/$name" ]; then
			show "/$name" "$root/$name"
		fi
	done
	mount -t tmpfs -o mode=755 culvert-guest "$root/usr/local"
	cp -a "$stage/usr/local/." "$root/usr/local"
	show "$tree" "$root/tree"
}

copy_image() {
	mkdir "$root/changes" "$root/work" "$root/merged"
	mount -t overlay -o "lowerdir=$image,upperdir=$root/changes,workdir=$root/work" \
		culvert-guest "$root/merged"
	root=$root/merged
	cp -a "$stage/." "$root"
	rm -rf "$root"/etc/systemd/system/*.wants # timers of apt and dpkg
	show "$tree" "$root/tree"
}

devices() {
	mkdir -p "$root/dev"
	mount -t tmpfs -o mode=755 culvert-guest "$root/dev"
	for name in null zero full random urandom tty; do
		touch "$root/dev/$name"
		mount --bind "/dev/$name" "$root/dev/$name"
	done
	touch "$root/dev/console"
	mount --bind "$console" "$root/dev/console"
	mkdir "$root/dev/pts" "$root/dev/shm"
	mount -t devpts -o newinstance,ptmxmode=666 culvert-guest "$root/dev/pts"
	ln -s pts/ptmx "$root/dev/ptmx"
	ln -s /proc/self/fd "$root/dev/fd"
}

kernel() {
	mkdir -p "$root/proc" "$root/sys"
	mount -t proc proc "$root/proc"
	show "$root/proc/sys" "$root/proc/sys"
	[ ! -e "$root/proc/sysrq-trigger" ] ||
		show "$root/proc/sysrq-trigger" "$root/proc/sysrq-trigger"
	mount -t sysfs sysfs "$root/sys"
	mount -o remount,bind,ro "$root/sys"
	mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
	mount -t bpf -o mode=700 bpf "$root/sys/fs/bpf"
}

accounts() {
	mkdir -p "$root/root" "$root/run" "$root/var/lib" "$root/var/log"
	mkdir -m 1777 "$root/tmp" "$root/var/tmp"
	printf 'root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n' >"$root/etc/passwd"
	printf 'root:x:0:\nadm:x:4:\nnogroup:x:65534:\n' >"$root/etc/group"
	printf 'passwd: files systemd\ngroup: files systemd\nhosts: files\nservices: files\n' \
		>"$root/etc/nsswitch.conf"
	for file in /etc/services /etc/ld.so.cache; do
		[ ! -e $file ] || cp $file "$root/etc"
	done
	[ ! -d /etc/alternatives ] || show /etc/alternatives "$root/etc/alternatives"
}

settings() {
	mkdir -p "$root/etc/systemd/system" "$root/etc/systemd/system-generators"
	tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
	printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
	printf '[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=no\n' >"$root/etc/systemd/journald.conf"
	printf '[Unit]\nRequires=basic.target systemd-journald.service\n%s\n' \
		'After=basic.target systemd-journald.service' \
		>"$root/etc/systemd/system/culvert-guest.target"
}

# Of what systemd starts of its own accord, the journal alone.
mask() {
	for file in "$root$systemd"/system/*.wants/*; do
		case ${file##*/} in
		systemd-journald.service | systemd-journald.socket | systemd-journald-dev-log.socket)
			;;
		*) ln -sf /dev/null "$root/etc/systemd/system/${file##*/}" ;;
		esac
	done
	for file in "$root$systemd"/system-generators/*; do
		ln -sf /dev/null "$root/etc/systemd/system-generators/${file##*/}"
	done
}

mount --make-rprivate /
mount -t tmpfs -o mode=755 culvert-guest "$root"
if [ -n "$image" ]; then
	copy_image
else
	mkdir "$root/etc"
	programs
	accounts
fi
systemd=/usr/lib/systemd
[ -x "$root$systemd/systemd" ] || systemd=/lib/systemd
devices
kernel
settings
mask
cd "$root"
mkdir old
pivot_root . old
umount -l old
rmdir old
exec env -i container=culvert PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
	TERM=dumb LANG=C.UTF-8 "$systemd/systemd" --unit=culvert-guest.target \
	--log-target=console --log-level=info --show-status=no
