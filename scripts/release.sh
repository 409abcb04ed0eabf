#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a release: release.sh VERSION [LAST]. Nothing is committed, tagged or sent anywhere; the last lines say what remains.
#
# 1. The sources get VERSION, and the CHANGELOG's "Not released yet" becomes the section of VERSION. If both are done, nothing changes.
# 2. scripts/packages.sh builds all packages, and tests each in a clean environment. As root. LAST, the tarball of the last release, is
#    upgraded to this one and back (scripts/compat.sh).
# 3. out/release/VERSION gets the packages, the section as notes.md, and SHA256SUMS over all of them.
set -euo pipefail
[ $# -eq 1 ] || [ $# -eq 2 ] || { echo "usage: scripts/release.sh VERSION [LAST], such as 0.2.0 kvcove-0.1.0-linux-x86_64.tar.gz" >&2; exit 2; }
version=$1
last=${2:+$(realpath -e "$2")}
cd "$(dirname "$0")/.."
out=out/release/$version
python3 scripts/release_version.py "$version"
changed=$(git status --porcelain)
if [ -n "$changed" ]; then
  echo "release.sh: the tree has changes that are not committed; the packages would be of no commit:" >&2
  printf '%s\n' "$changed" >&2
  echo "Look at them, commit them ('git commit -am \"release: $version\"'), and run this again." >&2
  exit 1
fi
rm -rf build/packages/debian # the image gets the corrections that Debian has by now
KVCOVE_LAST_RELEASE=$last scripts/packages.sh
rm -rf "$out"
mkdir -p "$out"
for file in build/packages/{*.deb,*.tar.gz,*.oci.tar,*.whl}; do
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
