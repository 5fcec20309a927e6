#!/usr/bin/env bash
# Runs a command, usually an agent, in a container that can access only this
# repository and the hosts allowed by setup-sandbox-network.sh.
#
#   ./sandbox.sh claude --dangerously-skip-permissions
#   swarm spawn --name fix --tmux --worktree -- ./sandbox.sh claude
#
# SANDBOX_IMAGE, SANDBOX_NETWORK, MEMORY_LIMIT, CPU_LIMIT and PIDS_LIMIT override
# the defaults below. GH_TOKEN, ANTHROPIC_API_KEY and CLAUDE_CODE_OAUTH_TOKEN
# are passed to the container if they are set.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
image="${SANDBOX_IMAGE:-swarm-sandbox}"
network="${SANDBOX_NETWORK:-swarm-sandbox}"

if [ "$#" -eq 0 ]; then
    echo "usage: ${0##*/} COMMAND [ARGUMENT...]" >&2
    exit 2
fi
if ! docker image inspect "$image" >/dev/null 2>&1; then
    echo "building image $image (takes a few minutes the first time)" >&2
    docker build --tag "$image" --file "$here/Dockerfile.sandbox" "$here" >&2
fi
# Without this network the container could reach every host.
if ! docker network inspect "$network" >/dev/null 2>&1; then
    echo "network $network not found: run $here/setup-sandbox-network.sh first" >&2
    exit 1
fi

mounts=(--volume "$PWD:$PWD")
# The .git of a worktree points into the main repository.
if common="$(git rev-parse --path-format=absolute --git-common-dir 2>/dev/null)"; then
    case "$common/" in
        "$PWD"/*) ;;
        *) mounts+=(--volume "$common:$common") ;;
    esac
fi

variables=()
for name in GH_TOKEN ANTHROPIC_API_KEY CLAUDE_CODE_OAUTH_TOKEN TERM; do
    if [ -n "${!name:-}" ]; then
        variables+=(--env "$name")
    fi
done

terminal=(--interactive)
if [ -t 0 ] && [ -t 1 ]; then
    terminal+=(--tty)
fi

exec docker run --rm --init "${terminal[@]}" \
    --memory "${MEMORY_LIMIT:-8g}" \
    --cpus "${CPU_LIMIT:-4}" \
    --pids-limit "${PIDS_LIMIT:-512}" \
    --network "$network" \
    --cap-drop ALL \
    --security-opt no-new-privileges \
    --user "$(id -u):$(id -g)" \
    --env HOME=/home/agent \
    ${variables[@]+"${variables[@]}"} \
    "${mounts[@]}" \
    --workdir "$PWD" \
    "$image" "$@"
