#!/usr/bin/env bash
# Removes what setup-sandbox-network.sh made. Run as root, when no container
# uses the network any more.
set -euo pipefail

network="${SANDBOX_NETWORK:-swarm-sandbox}"
chain=SWARM-SANDBOX

if [ "$(id -u)" -ne 0 ]; then
    echo "must be run as root: sudo $0" >&2
    exit 1
fi
# The network goes first: while it is there, its rules have to be as well.
if docker network inspect "$network" >/dev/null 2>&1; then
    subnet="$(docker network inspect --format '{{(index .IPAM.Config 0).Subnet}}' "$network")"
    docker network rm "$network" >/dev/null
    iptables --delete DOCKER-USER --source "$subnet" --jump "$chain" 2>/dev/null || true
fi
iptables --flush "$chain" 2>/dev/null || true
iptables --delete-chain "$chain" 2>/dev/null || true
echo "network $network is removed"
