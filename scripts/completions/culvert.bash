# SPDX-License-Identifier: BSD-2-Clause
# Completions for bash. Each row of @rows, which culvert-man prints, is
# _culvert_row COMMAND OPTION METAVAR VALUES HELP (user/man/completion.c).
_culvert_row() {
	if [[ $n -eq 1 ]]; then
		[[ $2 || " $words " == *" $1 "* ]] || words+=" $1"
	elif [[ $1 != "${line[1]}" ]]; then
		return
	elif [[ $2 ]]; then
		words+=" $2"
		[[ ! $3 ]] || valued+="$2 "
		[[ $2 != "$prev" || ! $3 ]] || { metavar=$3 values=${4:- }; }
	elif [[ $3 ]]; then
		metavars+=("$3") choices+=("$4")
	fi
}
# Names of the running daemon: column $2 of the table whose titles are NAME and $1.
_culvert_names() {
	"${line[0]}" forwards "${where[@]}" 2>/dev/null | awk -v titles="^NAME +$1" -v column="$2" \
		-v forward="$3" '$0 ~ titles { on = 1; next } !NF { on = 0 }
		on && (column == 1 || $1 == forward) { print $column }'
}
_culvert() {
	local typed=${COMP_LINE:0:COMP_POINT} words= metavar= values= valued=' -c ' at=0 i word
	local -a line metavars=() choices=() where=() plain=() list=()
	read -ra line <<<"$typed" # COMP_WORDS has parts of addresses
	[[ $typed != *[[:space:]] ]] || line+=('')
	local n=$((${#line[@]} - 1))
	local cur=${line[n]} prev=${line[n - 1]}
	_culvert_rows
	for ((i = 2; i < n; i++)); do
		case ${line[i]} in
		--control | --config | -c) where+=("${line[i]}" "${line[++i]}") ;;
		-*) [[ $valued != *" ${line[i]} "* ]] || ((++i)) ;;
		*) plain+=("${line[i]}") ;;
		esac
	done
	at=${#plain[@]}
	if [[ ! $metavar && $cur != -* && ${#metavars[@]} -gt 0 ]]; then
		[[ $at -lt ${#metavars[@]} || ${metavars[-1]} != *... ]] || at=$((${#metavars[@]} - 1))
		metavar=${metavars[at]%...} values=${choices[at]}
	fi
	COMPREPLY=()
	case $prev:$metavar in
	-c:* | *:FILE | *:PATH | *:DIR)
		compopt -o filenames
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		return ;;
	*:FORWARD) values=$(_culvert_names LISTEN 1) ;;
	*:SERVER) values=$(_culvert_names SERVER 2 "${plain[0]}") ;;
	esac
	# not compgen -W, which would run the text between backquotes in a name
	read -rd '' -a list <<<"${values:-$words}"
	for word in "${list[@]}"; do
		[[ $word != "$cur"* ]] || COMPREPLY+=("$word")
	done
	# readline replaces only the text behind a colon
	[[ $COMP_WORDBREAKS != *:* || $cur != *:* ]] ||
		COMPREPLY=("${COMPREPLY[@]#"${cur%"${cur##*:}"}"}")
}
_culvert_rows() {
@rows
}
complete -F _culvert culvert
