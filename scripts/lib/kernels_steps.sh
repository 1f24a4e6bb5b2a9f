#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
#
# Runs a plan: lines of NAME SECONDS COMMAND... Sourced by the guest's init; started with the name
# of a plan by scripts/kernels --here. Lines that begin with @@ are for the host.
failed=${failed:-0}

now() {
	read -r up _ </proc/uptime
	echo "${up%.*}"
}

# The pipe keeps what a program does to its standard output (O_NONBLOCK!) away from ours, which then
# would lose lines.
run_steps() {
	code_file=$(mktemp)
	while read -r name limit command; do
		printf '@@ begin %s\n' "$name"
		begin=$(now)
		# shellcheck disable=SC2086 # words of a command
		{
			timeout -k 5 "$limit" $command </dev/null 2>&1
			echo $? >"$code_file"
		} | cat
		read -r code <"$code_file"
		case $code in
		0 | 77) ;;
		*) failed=$((failed + 1)) ;;
		esac
		printf '\n@@ end %s %d %d\n' "$name" "$code" $(($(now) - begin))
	done
	rm -f "$code_file"
}

if [ $# -eq 1 ]; then
	printf '@@ boot %s\n' "$(uname -r)"
	run_steps <"$1"
	printf '@@ verdict %s %d\n' "$([ "$failed" -eq 0 ] && echo ok || echo failed)" "$failed"
fi
