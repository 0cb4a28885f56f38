#!/bin/sh
# admit.sh NODE=CLIENTS...: admit each node by its public key; once admitted, it is only told its clients again.
set -eu
for node; do
    thistle deploy add-node "/keys/server/nodes/${node%%=*}.pub" --clients "${node#*=}"
done
