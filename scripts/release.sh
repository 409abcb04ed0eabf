#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a release: release.sh VERSION. Nothing is committed, tagged or sent anywhere; the last lines say what remains.
#
# 1. The sources get VERSION, and the CHANGELOG's "Not released yet" becomes the section of VERSION. If both are done, nothing changes.
# 2. scripts/packages.sh builds all packages, and tests each in a clean environment. As root.
# 3. out/release/VERSION gets the packages, the section as notes.md, and SHA256SUMS over all of them.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || { echo "usage: scripts/release.sh VERSION, such as 0.2.0" >&2; exit 2; }
version=$1
out=out/release/$version
python3 scripts/release_version.py "$version"
changed=$(git status --porcelain)
if [ -n "$changed" ]; then
  echo "release.sh: the tree has changes that are not committed; the packages would be of no commit:" >&2
  printf '%s\n' "$changed" >&2
  echo "Look at them, commit them ('git commit -am \"release: $version\"'), and run this again." >&2
  exit 1
fi
scripts/packages.sh
rm -rf "$out"
mkdir -p "$out"
for file in build/packages/{*.deb,*.tar.gz,*.whl}; do
  case ${file##*/} in
    *"$version"*) cp "$file" "$out" ;;
    *) echo "release.sh: $file is no file of $version" >&2; exit 1 ;;
  esac
done
python3 scripts/release_version.py "$version" --notes >"$out/notes.md"
(cd "$out" && sha256sum -- * >SHA256SUMS && sha256sum --quiet -c SHA256SUMS)
ls -l "$out"
echo
echo "Done: $out. What remains: git tag -a v$version, and the files to where users find them."
