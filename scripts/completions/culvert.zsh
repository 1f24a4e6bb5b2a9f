#compdef culvert
# SPDX-License-Identifier: BSD-2-Clause
# Completions for zsh. Each row of @rows, which culvert-man prints, is
# _culvert_row COMMAND OPTION METAVAR VALUES HELP (user/man/completion.c).
local -a commands options
_culvert_row() {
	local value=
	case $3:$4 in
	(FILE:|PATH:|DIR:) value=":$3:_files" ;;
	(?*:) value=":$3: " ;;
	(?*:?*) value=":$3:($4)" ;;
	esac
	[[ -n $2 ]] || commands+=("$1:$5")
	[[ $1 == $words[2] ]] || return 0
	[[ -z $2 ]] || options+=("$2${3:+=}[$5]$value")
	[[ -n $2 || -z $3 ]] || options+=("*$value")
}
@rows
(( CURRENT > 2 )) || { _describe command commands; return }
shift words
(( CURRENT-- ))
_arguments $options
