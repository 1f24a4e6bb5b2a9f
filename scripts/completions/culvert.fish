# SPDX-License-Identifier: BSD-2-Clause
# Completions for fish. Each row of @rows, which culvert-man prints, is
# _culvert_row COMMAND OPTION METAVAR VALUES HELP (user/man/completion.c).
set -g __culvert_valued -c
set -g __culvert_last
function __culvert_command
	set -l words (commandline -opc)
	test "$words[2]" = "$argv[1]"
end
# Words that are no options, from the command on.
function __culvert_plain
	set -l words (commandline -opc)
	set -l value
	for word in $words
		if test -n "$value"
			set value
		else if contains -- $word $__culvert_valued
			set value 1
		else if not string match -q -- '-*' $word
			echo $word
		end
	end
end
# Names of the running daemon: column $argv[2] of the table whose titles are NAME and $argv[1].
function __culvert_names
	set -l plain (__culvert_plain)
	set -l where
	set -l words (commandline -opc)
	for i in (seq (count $words))
		contains -- $words[$i] --control --config -c
		and set -a where $words[$i] $words[(math $i + 1)]
	end
	$plain[1] forwards $where 2>/dev/null | awk -v titles="^NAME +$argv[1]" -v column=$argv[2] \
		-v forward="$plain[3]" '$0 ~ titles { on = 1; next } !NF { on = 0 }
		on && (column == 1 || $1 == forward) { print $column }'
end
function _culvert_row -a command option metavar values help
	set -l row -c culvert -n "__culvert_command $command"
	switch "$metavar:$values"
		case FORWARD:
			set values "(__culvert_names LISTEN 1)"
		case SERVER:
			set values "(__culvert_names SERVER 2)"
	end
	if test -n "$option"
		set -a row -l (string sub -s 3 -- $option) -d $help
		test -z "$metavar"; or set -ga __culvert_valued $option
	else
		contains -- $command $__culvert_last
		or complete -c culvert -n __culvert_command -a $command -d $help
		set -ga __culvert_last $command
		set -l place (math 1 + (count (string match -- $command $__culvert_last)))
		string match -q '*...' -- $metavar
		or set row[4] "__culvert_command $command; and test (count (__culvert_plain)) = $place"
	end
	if contains -- $metavar FILE PATH DIR
		set -a row -rF
	else if test -n "$metavar"
		set -a row -x -a $values
	end
	complete $row
end
complete -c culvert -f
@rows
