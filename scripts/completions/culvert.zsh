#compdef culvert
# SPDX-License-Identifier: BSD-2-Clause
# Completions for zsh. Each row of @rows, which culvert-man prints, is
# _culvert_row COMMAND OPTION METAVAR VALUES HELP (user/man/completion.c).
local -a commands options
local culvert=$words[1]
integer place=0
_culvert_row() {
	local metavar=${3%...} value=
	case $metavar:$4 in
	(FORWARD:) value=":$metavar: _culvert_names LISTEN 1" ;;
	(SERVER:) value=":$metavar: _culvert_names SERVER 2" ;;
	(FILE:|PATH:|DIR:) value=":$metavar:_files" ;;
	(?*:) value=":$metavar: " ;;
	(?*:?*) value=":$metavar:($4)" ;;
	esac
	[[ -n $2 ]] || (( $commands[(I)$1:*] )) || commands+=("$1:$5")
	[[ $1 == $words[2] ]] || return 0
	if [[ -n $2 ]]; then
		options+=("$2${3:+=}[$5]$value")
	elif [[ $3 == *... ]]; then
		options+=("*$value")
	elif [[ -n $3 ]]; then
		options+=("$((++place))$value")
	fi
}
# Names of the running daemon: column $2 of the table whose titles are NAME and $1.
_culvert_names() {
	local -a where names
	local i
	for i in {1..$#words}; do
		[[ $words[i] != (--control|--config|-c) ]] || where+=($words[i] $words[i+1])
	done
	names=(${(f)"$($culvert forwards $where 2>/dev/null | awk -v titles="^NAME +$1" -v column=$2 \
		-v forward=$words[2] '$0 ~ titles { on = 1; next } !NF { on = 0 }
		on && (column == 1 || $1 == forward) { print $column }')"})
	compadd -a names
}
@rows
(( CURRENT > 2 )) || { _describe command commands; return }
shift words
(( CURRENT-- ))
_arguments $options
