#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
#
# Sourced by the programs of scripts/ that build before they begin.

# PROGRAM ARGUMENT...: make ARGUMENT..., silently. If make fails, prints its last lines and ends
# PROGRAM; a signal ends PROGRAM, too.
build_quietly() {
	program=$1
	shift
	log=$(mktemp)
	trap 'rm -f "$log"' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	if ! make -j "$(nproc)" "$@" >"$log" 2>&1; then
		tail -n 30 "$log" >&2
		printf '%s: the build failed\n' "$program" >&2
		exit 1
	fi
	rm -f "$log"
	trap - EXIT INT TERM HUP
}
