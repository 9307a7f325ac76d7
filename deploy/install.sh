#!/bin/sh
# install.sh main | spark | wheel: what the Dockerfile installs, from an index or from /wheels.
set -eu
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
if ls /wheels/*.whl >/dev/null 2>&1; then
    export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels
fi
pip=/opt/dovetail/bin/pip
case "$1" in
    wheel) exec "$pip" wheel --quiet --no-deps --wheel-dir /built /source ;;
    *)
        python3 /source/requirements.py "$1" >/tmp/requirements.txt
        exec "$pip" install --quiet --requirement /tmp/requirements.txt
        ;;
esac
