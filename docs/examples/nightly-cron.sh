#!/bin/sh
# crontab: 17 2 * * *  /opt/specpilot/nightly-cron.sh
# Measures, judges, and mails the report when something is wrong. Exit 1: regression, 2: error.
set -u

here=${SPECPILOT_HOME:-/opt/specpilot}      # virtual environment and nightly.yaml
out=${SPECPILOT_OUT:-/var/lib/specpilot-nightly}   # `out:` of nightly.yaml
to=${SPECPILOT_MAIL:-root}

"$here/venv/bin/specpilot" nightly --config "$here/nightly.yaml" >"$out/last.log" 2>&1
code=$?
case $code in
0) ;;
1) mail -s "specpilot nightly: REGRESSION on $(hostname)" "$to" <"$out/report.md" ;;
*) mail -s "specpilot nightly: error $code on $(hostname)" "$to" <"$out/last.log" ;;
esac
exit $code
