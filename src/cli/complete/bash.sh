# Completion of swarm for bash.
# In ~/.bashrc: source <(swarm completions bash)

_swarm() {
    local line program=${1/#\~/$HOME}
    COMPREPLY=()
    type -P -- "$program" >/dev/null || program=swarm
    while IFS= read -r line; do
        case $line in
            $'\tfiles') compopt -o default ;;
            $'\tdirectories') compopt -o dirnames ;;
            $'\tcommands') mapfile -t COMPREPLY < <(compgen -c -- "$2") ;;
            *) COMPREPLY+=("${line%%$'\t'*}") ;;
        esac
    done < <("$program" __complete bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _swarm swarm
