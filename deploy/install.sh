#!/bin/sh
# install.sh main | spark | wheel: what the Dockerfile installs, from an index or from /wheels, in
# the versions and with the hashes that constraints.txt lists.
set -eu
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
if ls /wheels/*.whl >/dev/null 2>&1; then
    export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels
fi
cd /source
pip() { /opt/dovetail/bin/python -m pip "$@" --quiet --build-constraint constraints.txt; }
case "$1" in
    wheel) pip wheel --no-deps --wheel-dir /built . ;;
    *)
        .ci/install-pip /opt/dovetail/bin/python
        python3 deploy/requirements.py "$1" >/tmp/requirements.txt
        pip install --require-hashes --constraint constraints.txt --requirement /tmp/requirements.txt
        ;;
esac
