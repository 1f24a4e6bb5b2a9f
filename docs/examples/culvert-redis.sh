#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
#
# Redis 7 as the pipe between the relays of a fleet, in place of ssh, by redis-cli alone.  On relay a:
#
#     culvert-redis.sh tell a      # this relay's sessions, to all
#     culvert-redis.sh hear b      # those of relay b; one for each other relay
#
# Each ends when its pipe breaks: run it from a unit with Restart=always and RestartSec=1, as
# culvert-standby@.service.  The environment says where Redis is: REDIS="redis-cli -h 10.9.9.9 --tls",
# REDISCLI_AUTH for a password.  Who may write these keys makes this relay send packets anywhere, so give
# each relay an account that writes its own alone:
#
#     ACL SETUSER a on >SECRET resetkeys ~culvert:a ~culvert:a:* %R~culvert:* +@read +@write +eval +ping
#
# The key culvert:NAME names the key that has all bytes of NAME's export since that began: first all
# sessions, then changes.  A relay that says nothing for 10 s loses both keys.  A new export begins a new
# key, also when the old one has grown to 64 MB; then each reader begins anew, too.
set -u
: "${REDIS:=redis-cli}" "${CULVERT:=culvert}"
REDIS="$REDIS -e"
append="local n = redis.call('APPEND', KEYS[2], ARGV[1])
redis.call('EXPIRE', KEYS[2], 10)
redis.call('SET', KEYS[1], KEYS[2], 'EX', 10)
return #ARGV[1] == 0 and 0 or n"

case ${1-}:${2-} in
tell:?*)
	$REDIS DEL "$($REDIS GET "culvert:$2")" >/dev/null
	key=culvert:$2:$(date +%s%N)
	# dd takes what is there; the last argument of redis-cli -x is its input, of any bytes
	$CULVERT export | while n=$(dd bs=64k count=1 2>/dev/null |
		$REDIS -x EVAL "$append" 2 "culvert:$2" "$key") && [ "$n" -gt 0 ] && [ "$n" -lt 64000000 ]; do
		:
	done
	;;
hear:?*)
	key=$($REDIS GET "culvert:$2") at=0
	while end=$($REDIS STRLEN "$key") && [ "$end" -gt 0 ] && [ "$end" -ge "$at" ]; do
		[ "$end" -eq "$at" ] || $REDIS -D '' GETRANGE "$key" "$at" $((end - 1)) || break
		at=$end
		sleep 0.2
	done | $CULVERT import --name "$2"
	;;
*)
	echo "usage: $0 tell|hear NAME" >&2
	exit 2
	;;
esac
exit 1
