#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command in a small virtual machine that has two RDMA devices, where the host has none: rdma_guest.sh COMMAND [ARGUMENT...]
#
# The guest boots Debian's kernel, whose soft-RoCE driver (rdma_rxe) has real verbs over a pair of Ethernet devices. Its root is the
# host's, read-only; changes stay in the guest's memory, except below RDMA_GUEST_SHARE. COMMAND runs as root in the same directory with the
# same PATH. Its output (stdout and stderr together) and its exit status are passed on. 124: it was too slow. 125: there is no guest.
#
# In the guest:  rxe0 on rdma0 192.0.2.1   <- a cable (veth) ->   rxe1 on rdma1 192.0.2.2
# Packets between the two take the cable: `/run/cable down` pulls it, `/run/cable up` plugs it in again. GID index 1 is the IPv4 one. A
# retry_cnt of 7 retries for ever in this driver. Two programs that poll on two cores starve the driver: sleep on a descriptor instead.
# Debian on amd64 only.
#
# RDMA_GUEST_SECONDS=300   the guest's longest life          RDMA_GUEST_MEMORY=2G   its memory
# RDMA_GUEST_SHARE=DIR     writable in the guest, too        RDMA_GUEST_CPUS=N      default: as many as the host has
# RDMA_GUEST_CACHE=DIR     kernel and packages (300 MB); default: a directory of this user below TMPDIR
# RDMA_GUEST_ACCEL=tcg     or kvm; default: kvm where the processor has it, else emulation
set -euo pipefail

fail() {
  echo "rdma_guest.sh: $*" >&2
  exit 125
}
[[ $# -gt 0 ]] || fail "usage: rdma_guest.sh COMMAND [ARGUMENT...]"
seconds=${RDMA_GUEST_SECONDS:-300}
cache=${RDMA_GUEST_CACHE:-${TMPDIR:-/tmp}/rdma-guest-$(id -u)}
share=${RDMA_GUEST_SHARE:-}
[[ -z $share || -d $share ]] || fail "$share: no such directory"
mkdir -p "$cache" && chmod 700 "$cache"
[[ -O $cache ]] || fail "$cache belongs to another user"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Installs the emulator and the tools that the guest uses, too: its root is the host's.
install_tools() {
  local tool missing=()
  for tool in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static depmod:kmod cpio:cpio rdma:iproute2; do
    PATH=$PATH:/usr/sbin:/sbin command -v "${tool%:*}" > /dev/null || missing+=("${tool#*:}")
  done
  [[ -e /usr/share/doc/ibverbs-providers ]] || missing+=(ibverbs-providers)
  [[ ${#missing[@]} -eq 0 ]] && return
  [[ $(id -u) -eq 0 ]] || fail "install first: ${missing[*]}"
  {
    apt-get update || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
  } > "$work/apt.log" 2>&1 || fail "apt-get install ${missing[*]}: $(tail -3 "$work/apt.log")"
}

# Unpacks the newest kernel that apt knows, without installing it.
unpack_kernel() {
  [[ -e $cache/kernel/ready ]] && return
  local package
  package=$(apt-cache depends linux-image-amd64 2> /dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | tail -1)
  [[ -n $package ]] || { apt-get update > "$work/apt.log" 2>&1 || true; }
  package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | tail -1)
  rm -rf "$cache/kernel" && mkdir "$cache/kernel"
  (cd "$work" && apt-get download "$package" > apt.log 2>&1) || fail "apt-get download $package: $(tail -3 "$work/apt.log")"
  dpkg-deb -x "$work/$package"_*.deb "$cache/kernel"
  PATH=$PATH:/sbin depmod -b "$cache/kernel" "${package#linux-image-}"
  echo "${package#linux-image-}" > "$cache/kernel/ready"
}

# Packs the first file system: modules that mount the host's root, and the guest's two scripts.
pack_initramfs() {
  local module root=$work/initramfs
  mkdir -p "$root"/{bin,modules,proc,sys,dev,host,over,root}
  cp "$(command -v busybox)" "$root/bin/"
  for module in 9p 9pnet_virtio virtio_pci virtio_console overlay; do
    PATH=$PATH:/sbin modprobe -d "$cache/kernel" -S "$release" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
  done | awk '!seen[$0]++' > "$work/modules"
  while read -r module; do
    cp "$module" "$root/modules/" && basename "$module" >> "$root/modules/order"
  done < "$work/modules"
  cat > "$root/init" << 'INIT'
#!/bin/busybox sh
export PATH=/bin:/usr/sbin:/usr/bin:/sbin
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
for m in $($b cat /modules/order); do $b insmod /modules/$m; done
$b mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /host
$b mount -t tmpfs over /over; $b mkdir /over/upper /over/work
$b mount -t overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work root /root
for d in proc sys dev; do $b mount --move /$d /root/$d; done
$b mkdir -p /root/dev/shm /root/dev/pts
for d in run dev/shm; do $b mount -t tmpfs -o mode=1777 tmpfs /root/$d; done
$b mount -t devpts pts /root/dev/pts
$b cp /guest /command /root/run/
exec $b switch_root /root /bin/bash /run/guest
INIT
  cat > "$root/guest" << 'GUEST'
. /run/command
cd "$directory"
exec > /dev/vport*p1 2>&1 < /dev/null
mkdir -p /lib/modules && ln -s "$modules" "/lib/modules/$(uname -r)"
for m in rdma_rxe ib_uverbs veth; do /sbin/modprobe "$m"; done
[[ -z $share ]] || mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 share "$share"
ip link set lo up
ip link add rdma0 type veth peer name rdma1
for i in 0 1; do
  echo 0 > /proc/sys/net/ipv4/conf/rdma$i/rp_filter
  echo 1 > /proc/sys/net/ipv4/conf/rdma$i/accept_local
  ip addr add "192.0.2.$((i + 1))/24" dev rdma$i
  ip link set rdma$i up mtu 4500
done
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
# Packets from one device's address to the other's take the cable, not the loopback.
ip rule add pref 20 lookup local && ip rule del pref 0
cat > /run/cable << 'CABLE'
#!/bin/bash
ip link set rdma0 "$1"
[[ $1 == up ]] || exit 0
for i in 0 1; do
  ip neigh replace "192.0.2.$((2 - i))" lladdr "$(cat /sys/class/net/rdma$((1 - i))/address)" dev rdma$i nud permanent
  ip route replace "192.0.2.$((2 - i))" dev rdma$i table $((100 + i))
done
CABLE
chmod +x /run/cable && /run/cable up
for i in 0 1; do
  ip rule add pref 10 iif lo from "192.0.2.$((i + 1))" to "192.0.2.$((2 - i))" lookup $((100 + i))
  rdma link add rxe$i type rxe netdev rdma$i
done
export PATH=$path HOME=/root TMPDIR=/run/tmp XDG_RUNTIME_DIR=/run
mkdir -p /run/tmp; ulimit -l unlimited; ulimit -n 65536
(exec "${command[@]}"); status=$?
echo $status > /dev/vport*p2
echo o > /proc/sysrq-trigger; sleep 60
GUEST
  { declare -p command directory modules path share; } > "$root/command"
  chmod +x "$root/init"
  (cd "$root" && find . | cpio -o -H newc --quiet) > "$work/initramfs.cpio"
}

install_tools
(flock 9 && unpack_kernel) 9> "$cache/lock"
release=$(< "$cache/kernel/ready")
# shellcheck disable=SC2034  # pack_initramfs writes all of these for the guest
command=("$@") directory=$PWD modules=$cache/kernel/lib/modules/$release path=$PATH
pack_initramfs
accel=${RDMA_GUEST_ACCEL:-tcg}
[[ -z ${RDMA_GUEST_ACCEL:-} && -w /dev/kvm ]] && grep -qwE 'vmx|svm' /proc/cpuinfo && accel=kvm
[[ $accel == tcg ]] && accel=tcg,thread=multi
share_options=()
[[ -z $share ]] || share_options=(-virtfs "local,path=$share,mount_tag=share,security_model=none")
timeout "$seconds" qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none -nic none -M pc -accel "$accel" \
  -cpu max -smp "${RDMA_GUEST_CPUS:-$(nproc)}" -m "${RDMA_GUEST_MEMORY:-2G}" -serial "file:$work/console" \
  -kernel "$cache/kernel/boot/vmlinuz-$release" -initrd "$work/initramfs.cpio" -append "console=ttyS0 quiet panic=-1" \
  -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap "${share_options[@]}" \
  -device virtio-serial -chardev file,id=out,path=/dev/stdout,append=on -device virtserialport,chardev=out,nr=1 \
  -chardev "file,id=status,path=$work/status" -device virtserialport,chardev=status,nr=2 < /dev/null | cat && rc=0 || rc=$?
[[ $rc -eq 124 ]] && { echo "rdma_guest.sh: ended after $seconds s" >&2; exit 124; }
[[ -s $work/status ]] || { tail -20 "$work/console" >&2; fail "the guest ended without a status (qemu: $rc)"; }
exit "$(< "$work/status")"
