#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
#
# ip(8) in the guest of scripts/kernels --cards. In place of a pair of veth devices it gives two
# network cards that a cable joins, so the labs of other tests stand on cards unchanged.
# CULVERT_CARDS has the kind, and the offloads to turn off. Cards come back to the first namespace
# a moment after their own namespace is deleted.
ip=/culvert/bin/ip
case "$*" in
*"link show type veth") # scripts/lab waits until all are up
	"$ip" -n "$2" -o link show | grep -v LOOPBACK
	exit
	;;
*"type veth peer"*) ;;
*) exec "$ip" "$@" ;;
esac

exec 9</proc/self/ns/net
near=/proc/self/fd/9
far=
while [ $# -gt 0 ]; do
	case $1 in
	-n | -netns) near=$2 && shift ;;
	netns) [ -n "${far_name:-}" ] && far=$2 || near=$2 && shift ;;
	link | add | type | veth | peer | name) ;;
	*) [ -n "${near_name:-}" ] && far_name=$1 || near_name=$1 ;;
	esac
	shift
done

# COMMAND...: in the first namespace
home() {
	nsenter --net=/culvert/cards/first "$@"
}

# ADDRESS: the name of the card that is there
card() {
	home "$ip" -o link show | sed -n "s/^[0-9]*: \([^:@]*\): .*link\/ether $1 .*/\1/p"
}

# CARD NAMESPACE NAME
give() {
	home "$ip" link set "$1" netns "$2" name "$3" mtu 1500
}

kind=${CULVERT_CARDS%%,*}
tries=0
while :; do
	while read -r one left right; do
		[ "$one" = "$kind" ] || continue
		a=$(card "$left")
		b=$(card "$right")
		[ -z "$a" ] || [ -z "$b" ] || break 2
	done </culvert/cards/pairs
	tries=$((tries + 1))
	[ "$tries" -lt 50 ] || { echo "no two $kind cards are left" >&2 && exit 2; }
	sleep 0.2
done
home /usr/bin/python3 -I -S /culvert/cards/wire.py offload "$a,$b" "$CULVERT_CARDS" &&
	give "$a" "$near" "$near_name" && give "$b" "${far:-$near}" "$far_name"
