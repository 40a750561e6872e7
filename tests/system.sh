#!/bin/sh
# Installs the Debian packages that the tests need and that are absent: PostgreSQL, and bubblewrap where the one from
# the wheel cannot isolate a worker. Without root it says what to install.
set -eu
cd "$(dirname "$0")/.."

missing=""
if ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && ! command -v initdb >/dev/null 2>&1; then
    missing="postgresql"
fi
if ! .venv/bin/python -c 'import sys; from sandboxes.isolation import Isolation; sys.exit(not Isolation("auto").isolated)'; then
    missing="$missing bubblewrap"
fi
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "The tests need these packages, which are absent: $missing" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
# shellcheck disable=SC2086  # a list of words
apt-get -qq install --yes --no-install-recommends $missing
