#compdef swarm
# Completion of swarm for zsh.
# In ~/.zshrc after compinit: source <(swarm completions zsh)
# or once, in a directory of $fpath: swarm completions zsh > ~/.zfunc/_swarm

_swarm() {
    local line program=${words[1]/#\~/$HOME}
    local -a offered
    for line in "${(@f)$("$program" __complete zsh "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        case $line in
            '') ;;
            $'\tfiles') _files; return ;;
            $'\tdirectories') _files -/; return ;;
            $'\tcommands') _command_names -e; return ;;
            *) offered+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
        esac
    done
    _describe swarm offered
}
if [ "$funcstack[1]" = _swarm ]; then
    _swarm "$@"
else
    compdef _swarm swarm
fi
