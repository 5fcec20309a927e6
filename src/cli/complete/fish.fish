# Completion of swarm for fish.
# Once: swarm completions fish > ~/.config/fish/completions/swarm.fish

function __swarm_complete
    set -l words (commandline --tokenize --cut-at-cursor --current-process)
    set -l typed (commandline --current-token --cut-at-cursor)
    for line in ($words[1] __complete fish $words[2..] "$typed" 2>/dev/null)
        switch $line
            case \t'files'
                __fish_complete_path $typed
            case \t'directories'
                __fish_complete_directories $typed
            case \t'commands'
                __fish_complete_command
            case '*'
                echo $line
        end
    end
end
complete --command swarm --no-files --keep-order --arguments '(__swarm_complete)'
