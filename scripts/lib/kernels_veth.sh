#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
#
# Traffic through culvert between three network namespaces, joined by veth, every byte verified.
# With CULVERT_CARDS (see kernels_ip.sh) network cards are in their place.
#
# Usage: kernels_veth.sh DIRECTORY ENGINE [loss | vlan | wireguard | transport | tunnel | torture]
#   DIRECTORY  of culvert, culvert-bench and test_torture
#   loss       the gateway's devices lose, repeat and reorder packets
#   vlan       addresses are those of VLAN devices over veth
#   wireguard  addresses are those of tunnels through veth
#   transport, tunnel  IPsec between gateway and upstream; TCP must not leave in clear text
#   torture    the torture peer is both ends, in one namespace
# Ends with 77 if the kernel lacks veth, or another device that the arguments ask for.
set -u
umask 077
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
	if [ "$net" = wireguard ]; then
		address "$1" "v$2" "172.31.${3##*.}.1/24"
		address "$2" "v$1" "172.31.${3##*.}.2/24"
		wg genkey >"$work/$1$2"
		wg genkey >"$work/$2$1" || skip wg
		tunnel "$1" "$2" "$3" 1 2
		tunnel "$2" "$1" "$3" 2 1
		return
	fi
	address "$1" "v$2" "$3.1/24"
	address "$2" "v$1" "$3.2/24"
}

skip() {
	printf 'skipped: no %s in this kernel\n' "$1"
	exit 77
}

# NAMESPACE PEER NET NUMBER NUMBER-OF-PEER
tunnel() {
	ip -n "$name$1" link add "w$2" type wireguard || skip wireguard
	in_ns "$1" wg set "w$2" listen-port "5182${3##*.}" private-key "$work/$1$2" \
		peer "$(wg pubkey <"$work/$2$1")" allowed-ips 0.0.0.0/0 \
		endpoint "172.31.${3##*.}.$5:5182${3##*.}" || fail 'no tunnel'
	ip -n "$name$1" link set "w$2" up
	ip -n "$name$1" addr add "$3.$4/24" dev "w$2"
}

# NAMESPACE DEVICE ADDRESS
address() {
	device=$2
	ip -n "$name$1" link set "$2" up
	if [ "$net" = vlan ]; then
		device=$2.7
		ip -n "$name$1" link add link "$2" name "$device" type vlan id 7 ||
			skip 'VLAN devices'
		ip -n "$name$1" link set "$device" up
	fi
	ip -n "$name$1" addr add "$3" dev "$device"
}

# MODE: IPsec between gateway and upstream. The client's packets would fit without it.
protect() {
	ip -n "${name}c" link set vg mtu 1300
	ip -n "${name}g" link set vc mtu 1300
	for end in g u; do
		for way in '1 2' '2 1'; do
			from=10.99.2.${way% *}
			to=10.99.2.${way#* }
			[ "$end$way" = 'g1 2' ] || [ "$end$way" = 'u2 1' ] && dir=out || dir=in
			ip -n "$name$end" xfrm state add src "$from" dst "$to" proto esp \
				spi "0x10${way% *}" reqid 1 mode "$1" aead 'rfc4106(gcm(aes))' \
				0x0102030405060708090a0b0c0d0e0f1011121314 128 || skip ESP
			ip -n "$name$end" xfrm policy add src "$from" dst "$to" proto 6 dir "$dir" \
				tmpl src "$from" dst "$to" proto esp reqid 1 mode "$1" || skip ESP
		done
	done
}

# Both ends in one namespace.
unite() {
	ip -n "${name}u" link set vg netns "${name}c" name vh
	address c vh 10.99.2.2/24
}

make_lab() {
	for end in c g u; do
		ip netns add "$name$end" || fail "no network namespace"
		ip -n "$name$end" link set lo up
	done
	if ! join c g 10.99.1 || ! join g u 10.99.2; then
		[ -z "${CULVERT_CARDS:-}" ] || fail 'no cards'
		skip veth
	fi
	case $net in
	transport | tunnel) protect "$net" ;;
	torture) unite ;;
	esac
	for device in vc vu; do # a card takes its time
		await_up g "$device"
	done
	[ "$net" = loss ] || return 0
	for device in vc vu; do
		if ! in_ns g tc qdisc add dev "$device" root netem delay 1ms loss 1% duplicate 1% \
			reorder 20% 50% 2>/dev/null; then
			skip netem
		fi
	done
}

await_up() {
	tries=0
	while ip -n "$name$1" link show "$2" | grep -q NO-CARRIER; do
		tries=$((tries + 1))
		[ "$tries" -lt 100 ] || fail "$2 has no carrier"
		sleep 0.1
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

# Counts the packets at the gateway's device towards the upstream.
watch() {
	(enter g /usr/bin/python3 -I -S /culvert/cards/wire.py watch vu >"$work/watch.log" 2>&1) &
	watch=$!
	pids="$watch $pids"
	await "$work/watch.log" watching 'the packet socket'
}

end_watch() {
	kill -TERM "$watch"
	wait "$watch"
	seen=$(tail -n 1 "$work/watch.log")
	case $net in
	transport | tunnel | wireguard)
		[ -n "${seen##*out tcp*}" ] || fail "clear text: $seen"
		[ -z "${seen##*out [eu]*}" ] || fail "neither ESP nor UDP: $seen"
		;;
	esac
	printf '%s\n' "$seen"
	wanted=$(printf '%s' "${CULVERT_SEEN:-}" | tr - ' ')
	[ -z "$wanted" ] || [ -z "${seen##*\""$wanted"\": [1-9]*}" ] || fail "no packet was $wanted"
}

start_all() {
	if [ "$net" != torture ]; then # which is the upstream itself
		(enter u "$bin/culvert-bench" sink --listen 10.99.2.2:9001 >"$work/sink.log" 2>&1) &
		pids=$!
	fi
	(enter g "$bin/culvert" run --engine "$engine" --control "$work/control" --grace 1 \
		--connect-timeout 20 --max-sessions 100 10.99.1.2:9000 10.99.2.2:9001 \
		>"$work/culvert.log" 2>&1) &
	daemon=$!
	pids="${pids:-} $daemon"
	await "$work/culvert.log" 'culvert: ready' culvert
}

measure() {
	in_ns c "$bin/culvert-bench" "$@" --connect 10.99.1.2:9000 --verify full --seconds 1.5 \
		--timeout 30 >"$work/result" 2>&1
	code=$?
	sed 's/, "histogram.*/ }/' "$work/result"
	[ "$code" -eq 0 ] || fail "culvert-bench $1 ended with $code"
}

torture() {
	in_ns c "$bin/test_torture" --connect 10.99.1.2:9000 --listen 10.99.2.2:9001 --minutes 0.1 \
		--concurrency 8 --stall-timeout 120 >"$work/result" 2>&1
	code=$?
	cat "$work/result"
	[ "$code" -eq 0 ] || fail "test_torture ended with $code"
}

load() {
	measure rr --connections 4 --size 700
	if [ "$net" = wireguard ]; then # it encrypts slowly: full queues would take a minute
		measure rr --connections 2 --size 20K
	else
		measure bulk-both --connections 2 --size 64K
	fi
	measure crr --connections 2 --size 100
}

make_lab
start_all
[ -z "${CULVERT_CARDS:-}" ] || watch
if [ "$net" = torture ]; then
	torture
else
	load
fi
"$bin/culvert" status --json --control "$work/control" >"$work/status" || fail "no status"
cat "$work/status"
[ "$engine" != graft ] || grep -q '"to_graft":[1-9]' "$work/status" || fail "no session is grafted"
pids=${pids% *}
kill -TERM "$daemon"
wait "$daemon" || fail "culvert ended with $?"
[ -z "${CULVERT_CARDS:-}" ] || end_watch
