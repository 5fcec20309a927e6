#!/usr/bin/env bash
# Removes the network and the rules created by setup-sandbox-network.sh. Run as
# root, after all containers that use the network have ended.
set -euo pipefail

network="${SANDBOX_NETWORK:-swarm-sandbox}"
chain=SWARM-SANDBOX

if [ "$(id -u)" -ne 0 ]; then
    echo "must be run as root: sudo $0" >&2
    exit 1
fi
# The network is removed first: as long as it exists, its rules are needed.
if docker network inspect "$network" >/dev/null 2>&1; then
    subnet="$(docker network inspect --format '{{(index .IPAM.Config 0).Subnet}}' "$network")"
    docker network rm "$network" >/dev/null
    iptables --delete DOCKER-USER --source "$subnet" --jump "$chain" 2>/dev/null || true
fi
iptables --flush "$chain" 2>/dev/null || true
iptables --delete-chain "$chain" 2>/dev/null || true
echo "network $network removed"
