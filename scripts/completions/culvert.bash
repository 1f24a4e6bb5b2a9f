# SPDX-License-Identifier: BSD-2-Clause
# Completions for bash. Each row of @rows, which culvert-man prints, is
# _culvert_row COMMAND OPTION METAVAR VALUES HELP (user/man/completion.c).
_culvert_row() {
	if [[ $COMP_CWORD -eq 1 ]]; then
		[[ $2 ]] || words+=" $1"
	elif [[ $1 == "${COMP_WORDS[1]}" ]]; then
		words+=" $2"
		[[ $2 || $cur == -* ]] || { metavar=$3 values=$4; }
		[[ $2 != "$prev" || ! $3 ]] || { metavar=$3 values=${4:- }; }
	fi
}
_culvert() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
	local words= metavar= values=
	_culvert_rows
	case $prev:$metavar in
	-c:* | *:FILE | *:PATH | *:DIR)
		compopt -o filenames
		mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
	*) mapfile -t COMPREPLY < <(compgen -W "${values:-$words}" -- "$cur") ;;
	esac
}
_culvert_rows() {
@rows
}
complete -F _culvert culvert
