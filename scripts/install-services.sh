#!/bin/sh
# Install the programs that tests need besides Python: Redis, PostgreSQL, Prometheus, Chromium, zsh, fish, tmux and iproute2. This
# needs root and apt-get. Without them the tests that need a missing program are skipped.
set -eu

missing=""
command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
if ! command -v postgres >/dev/null 2>&1 && ! ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; then
    missing="$missing postgresql"
fi
for program in prometheus chromium zsh fish tmux; do
    command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
done
command -v ip >/dev/null 2>&1 || missing="$missing iproute2"
[ -n "$missing" ] || exit 0

if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
    echo "Not installed:$missing. The tests that need them will be skipped."
fi
