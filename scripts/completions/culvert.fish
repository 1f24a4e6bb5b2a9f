# SPDX-License-Identifier: BSD-2-Clause
# Completions for fish. Each row of @rows, which culvert-man prints, is
# _culvert_row COMMAND OPTION METAVAR VALUES HELP (user/man/completion.c).
function __culvert_command
	set -l words (commandline -opc)
	test "$words[2]" = "$argv[1]"
end
function _culvert_row -a command option metavar values help
	set -l row -c culvert -n "__culvert_command $command"
	if test -n "$option"
		set -a row -l (string sub -s 3 -- $option) -d $help
	else
		complete -c culvert -n __culvert_command -a $command -d $help
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
