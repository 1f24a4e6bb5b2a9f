#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
#
# Traffic through culvert between three network namespaces, joined by veth, every byte verified.
#
# Usage: kernels_veth.sh DIRECTORY ENGINE [loss | vlan]
#   DIRECTORY  of culvert and culvert-bench
#   loss       the gateway's devices lose, repeat and reorder packets
#   vlan       addresses are those of VLAN devices over veth
# Ends with 77 if there is no veth, or no netem or VLAN device that is asked for.
set -u
bin=$1
engine=$2
net=${3:-}

if ! work=$(mktemp -d /tmp/culvert-veth.XXXXXX); then
	exit 1
fi
name=cv$$
pids=

# shellcheck disable=SC2317,SC2086 # called by a trap; a list of pids
clean_up() {
	if [ -n "$pids" ]; then
		kill -TERM $pids 2>/dev/null
		wait
	fi
	for end in c g u; do
		ip netns del "$name$end" 2>/dev/null
	done
	rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

fail() {
	printf 'FAIL: %s\n' "$*"
	[ ! -s "$work/culvert.log" ] || tail -n 20 "$work/culvert.log"
	exit 1
}

# END COMMAND...: becomes the command, so that $! of a subshell is its pid.
enter() {
	space=$name$1
	shift
	exec ip netns exec "$space" "$@"
}

in_ns() (
	enter "$@"
)

# FROM TO NET: a cable with addresses .1 and .2
join() {
	ip link add "v$2" netns "$name$1" type veth peer name "v$1" netns "$name$2" || return 1
	address "$1" "v$2" "$3.1/24"
	address "$2" "v$1" "$3.2/24"
}

# NAMESPACE DEVICE ADDRESS
address() {
	device=$2
	ip -n "$name$1" link set "$2" up
	if [ "$net" = vlan ]; then
		device=$2.7
		if ! ip -n "$name$1" link add link "$2" name "$device" type vlan id 7; then
			printf 'skipped: no VLAN devices in this kernel\n'
			exit 77
		fi
		ip -n "$name$1" link set "$device" up
	fi
	ip -n "$name$1" addr add "$3" dev "$device"
}

make_lab() {
	for end in c g u; do
		ip netns add "$name$end" || fail "no network namespace"
		ip -n "$name$end" link set lo up
	done
	if ! join c g 10.99.1 || ! join g u 10.99.2; then
		printf 'skipped: no veth in this kernel\n'
		exit 77
	fi
	[ "$net" = loss ] || return 0
	for device in vc vu; do
		if ! in_ns g tc qdisc add dev "$device" root netem delay 1ms loss 1% duplicate 1% \
			reorder 20% 50% 2>/dev/null; then
			printf 'skipped: no netem in this kernel\n'
			exit 77
		fi
	done
}

# FILE TEXT WHAT
await() {
	tries=0
	while ! grep -q "$2" "$1" 2>/dev/null; do
		tries=$((tries + 1))
		[ "$tries" -lt 300 ] || fail "$3 does not start: $(cat "$1")"
		sleep 0.1
	done
}

start_all() {
	(enter u "$bin/culvert-bench" sink --listen 10.99.2.2:9001 >"$work/sink.log" 2>&1) &
	pids=$!
	(enter g "$bin/culvert" run --engine "$engine" --control "$work/control" --grace 1 \
		--connect-timeout 20 --max-sessions 100 10.99.1.2:9000 10.99.2.2:9001 \
		>"$work/culvert.log" 2>&1) &
	daemon=$!
	pids="$pids $daemon"
	await "$work/culvert.log" 'culvert: ready' culvert
}

measure() {
	in_ns c "$bin/culvert-bench" "$@" --connect 10.99.1.2:9000 --verify full --seconds 1.5 \
		--timeout 30 >"$work/result" 2>&1
	code=$?
	sed 's/, "histogram.*/ }/' "$work/result"
	[ "$code" -eq 0 ] || fail "culvert-bench $1 ended with $code"
}

make_lab
start_all
measure rr --connections 4 --size 700
measure bulk-both --connections 2 --size 64K
measure crr --connections 2 --size 100
"$bin/culvert" status --json --control "$work/control" || fail "no status"
pids=${pids% *}
kill -TERM "$daemon"
wait "$daemon" || fail "culvert ended with $?"
