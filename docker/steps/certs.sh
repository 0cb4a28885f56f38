#!/bin/sh
# certs.sh NODE...: keys and certificates, made once; every host's folder of them goes into that host's volume.
set -eu
umask 077
if ! test -d /authority/federation; then
    rm -rf /authority/unfinished
    thistle certs /authority/unfinished --host server
    mv /authority/unfinished /authority/federation
fi
for node; do
    test -f "/authority/federation/server/nodes/$node.pub" && continue
    rm -rf "/authority/federation/$node"
    thistle certs /authority/federation --node "$node"
done
for host in server "$@"; do
    cp -Rp "/authority/federation/$host/." "/keys/$host/"
done
