#!/usr/bin/env bash
# Creates the network for sandbox.sh. Its containers can reach only name servers
# and the hosts below, over HTTPS and SSH. Run as root; run it again if the
# addresses of the hosts have changed.
#
# SANDBOX_NETWORK sets the name, SANDBOX_HOSTS adds hosts (separated by blanks).
set -euo pipefail

network="${SANDBOX_NETWORK:-swarm-sandbox}"
chain=SWARM-SANDBOX
hosts=(
    api.anthropic.com
    statsig.anthropic.com
    console.anthropic.com
    github.com
    api.github.com
    codeload.github.com
    objects.githubusercontent.com
    raw.githubusercontent.com
    registry.npmjs.org
    pypi.org
    files.pythonhosted.org
    index.crates.io
    static.crates.io
)
read -r -a more <<<"${SANDBOX_HOSTS:-}"

if [ "$(id -u)" -ne 0 ]; then
    echo "must be run as root: sudo $0" >&2
    exit 1
fi
docker network inspect "$network" >/dev/null 2>&1 || docker network create --driver bridge "$network" >/dev/null
subnet="$(docker network inspect --format '{{(index .IPAM.Config 0).Subnet}}' "$network")"

# Everything is rejected first, so that a failure below leaves the network closed.
iptables --new-chain "$chain" 2>/dev/null || iptables --flush "$chain"
iptables --append "$chain" --jump REJECT
iptables --check DOCKER-USER --source "$subnet" --jump "$chain" 2>/dev/null \
    || iptables --insert DOCKER-USER --source "$subnet" --jump "$chain"

allow() {
    iptables --insert "$chain" "$@" --jump ACCEPT
}
allow --match conntrack --ctstate ESTABLISHED,RELATED
allow --protocol udp --dport 53
allow --protocol tcp --dport 53
for host in "${hosts[@]}" ${more[@]+"${more[@]}"}; do
    addresses="$(getent ahostsv4 "$host" | awk '{print $1}' | sort -u)" || true
    if [ -z "$addresses" ]; then
        echo "warning: cannot resolve $host; it stays blocked" >&2
        continue
    fi
    for address in $addresses; do
        allow --protocol tcp --destination "$address" --match multiport --dports 22,443
    done
done
echo "network $network ($subnet) is ready"
