#!/usr/bin/env bash
# go vet for a machine of 32 bits, of the modules that applications import.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
for module in . grpclimit otellimit; do
	(cd "$module" && GOARCH=386 go vet ./...) || status=1
done
exit "$status"
