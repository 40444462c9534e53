# shellcheck shell=bash disable=SC2154,SC2034 # the sourcing script sets the variables not set here
# parts.sh - the parts of the siw guest: archives that the kernel unpacks over the image. `build`
# sources it.
#
# A part holds nothing that the image has. Its programs come from Debian's packages. The script
# unpacks these packages, with everything that they need and this machine lacks, and never installs
# them, so that no NFS server starts here.
#
# nfs has 14 MB, fio 78 (its libraries for storage of all kinds) and tree 5. On a quiet machine a
# guest with all three has mounted an export 4 s after its start, by its own clock.

unpack_packages() { # PACKAGE... - into ROOTFS, with all dependencies that are not installed
    local deb list debs=$WORK/debs
    ROOTFS=$WORK/rootfs
    rm -rf "$ROOTFS" "$debs"
    mkdir "$ROOTFS" "$debs"
    list=$(apt-get install --simulate -qq --no-install-recommends "$@" |
        sed -n 's/^Inst \([^ ]*\) .*/\1/p') ||
        die "apt knows no way to install $*"
    [[ $list ]] || return 0
    # shellcheck disable=SC2086
    (cd "$debs" &&
        apt-get download -q -o APT::Sandbox::User=root $list >"$WORK/download.log" 2>&1) ||
        { cat "$WORK/download.log" >&2; die "could not download" $list; }
    for deb in "$debs"/*.deb; do dpkg-deb -x "$deb" "$ROOTFS"; done
}
program() { # NAME - prints its path: unpacked, or else installed
    local dir
    for dir in "$ROOTFS"/{usr/,}{s,}bin {/usr,}/{s,}bin; do
        [[ ! -x $dir/$1 ]] || { echo "$dir/$1"; return; }
    done
    die "no $1"
}
# An unpacked file goes in the guest to the place where its package has it.
place() { # FILE
    local at=${1#"$ROOTFS"}
    ! grep -qxF "$at" "$WORK/has" || return 0
    [[ -e $IMG$at ]] || install -D "$1" "$IMG$at"
}
place_program() { # NAME... - with its shared libraries, and a link in /bin
    local name file lib
    for name in "$@"; do
        file=$(program "$name")
        place "$file"
        ln -s "${file#"$ROOTFS"}" "$IMG/bin/$name"
        for lib in $(LD_LIBRARY_PATH=$LIBRARIES ldd "$file" | grep -oE '/[^ ]+\.so[^ ]*'); do
            place "$lib"
        done
    done
}

part_nfs() {
    local file
    unpack_packages nfs-kernel-server nfs-common rpcbind
    LIBRARIES=$(libraries)
    place_program mount.nfs umount.nfs rpc.nfsd rpc.mountd exportfs rpcbind
    mkdir -p "$IMG"/{modules,etc,export,mnt,run/rpcbind,var/lib/nfs,proc}
    touch "$IMG"/var/lib/nfs/{etab,rmtab}
    ln -s ../run "$IMG/var/run" # the kernel looks for rpcbind there
    for file in "$ROOTFS/etc/netconfig" /etc/netconfig; do
        [[ ! -e $file ]] || cp "$file" "$IMG/etc/netconfig"
    done
    [[ -e $IMG/etc/netconfig ]] || die "no netconfig"
    printf '127.0.0.1 localhost\n' >"$IMG/etc/hosts"
    printf 'tcp 6 TCP\nudp 17 UDP\n' >"$IMG/etc/protocols"
    printf 'sunrpc 111/tcp\nsunrpc 111/udp\nnfs 2049/tcp\nmountd 20048/tcp\nnfsrdma 20049/tcp\n' \
        >"$IMG/etc/services"
    printf 'root:x:0:0::/:/bin/sh\n_rpc:x:101:65534::/run:\nnobody:x:65534:65534::/:\n' \
        >"$IMG/etc/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$IMG/etc/group"
    put_modules 500 rpcrdma nfsv3 nfsd
}
part_fio() {
    unpack_packages fio
    LIBRARIES=$(libraries)
    place_program fio
}
part_tree() {
    need_source
    cp -r "$OUT/tree" "$IMG/tree"
}
# Keep the tree in OUT/linux as well, for use outside of guests.
part_linux() {
    unpack_source kernel net drivers/infiniband
    rm -rf "$OUT/linux"
    mv "$WORK/unpacked" "$OUT/linux"
    cp -r "$OUT/linux" "$IMG/linux"
}
# DPDK's drivers of the NICs that QEMU emulates, with the modules that they need; VLANs; bonds; 9p,
# for `run --share`.
part_nic() {
    local name file lib dir
    dir=$(dirname "$(find /usr/lib -path '*/dpdk/pmds-*/librte_bus_pci.so.*.*')")
    for name in bus_pci bus_vdev mempool_ring net_virtio net_e1000 net_vmxnet3 net_ring net_bond; do
        # The EAL loads the plugin by its file name, and other plugins by its soname: both must be
        # one file, or its constructors would run twice.
        file=$(find "$dir" -name "librte_$name.so.*.*" -type f)
        [[ -e $file ]] || die "no plugin $name of DPDK in $dir"
        install -D "$file" "$IMG$file"
        lib=${file##*/}
        ln -s "$file" "$IMG${dir%/dpdk/*}/${lib%.*}"
        for lib in $(ldd "$file" | grep -oE '/[^ ]+\.so[^ ]*'); do
            [[ -e $dir/${lib##*/} ]] || place_library "$lib"
        done
    done
    mkdir -p "$IMG/modules"
    put_modules 500 vfio_iommu_type1 vfio-pci uio_pci_generic 8021q bonding 9pnet_virtio 9p
}
# Programs that look at the kernel's connections, and 9p, for `run --share`.
part_tcp() {
    local name file lib
    mkdir -p "$IMG/modules"
    for name in ss nstat; do
        file=$(type -P "$name") || die "no $name"
        place_library "$file"
        ln -s "$file" "$IMG/bin/$name"
        for lib in $(ldd "$file" | grep -oE '/[^ ]+\.so[^ ]*'); do place_library "$lib"; done
    done
    put_modules 500 tcp_diag tcp_dctcp 9pnet_virtio 9p
}
# Copies a file of this machine, unless the image has it.
place_library() { # FILE
    ! grep -qxF "$1" "$WORK/has" || return 0
    [[ -e $IMG$1 ]] || install -D "$1" "$IMG$1"
}
libraries() { find "$ROOTFS" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:; }

part_stamp() { # PART
    echo "image $(grep -v '^variant ' "$OUT/stamp" | sha256sum | cut -c1-16)"
    local functions=(unpack_packages program place place_program place_library libraries
        put_modules "part_$1")
    echo "scripts $(declare -f "${functions[@]}" | sha256sum | cut -c1-16)"
    case $1 in
    nfs) echo "nfs-kernel-server $(candidate nfs-kernel-server) rpcbind $(candidate rpcbind)" ;;
    fio) echo "fio $(candidate fio)" ;;
    nic) echo "8021q bonding $(dpkg-query -W dpdk-dev libdpdk-dev | tr '\n' ' ')" ;;
    tree | linux) echo "$SOURCE $(kernel_candidate "$SOURCE")" ;;
    tcp) dpkg-query -W iproute2 ;;
    esac
}
make_parts() {
    local part
    for part in "${PARTS[@]}"; do
        if [[ -e $OUT/$part.cpio &&
            $(cat "$OUT/$part.stamp" 2>/dev/null) == "$(part_stamp "$part")" ]]; then
            continue
        fi
        rm -f "$OUT/$part.stamp"
        say "part $part"
        cpio -t --quiet <"$OUT/initramfs.cpio" | sed 's|^|/|' >"$WORK/has"
        IMG=$WORK/part-$part
        mkdir -p "$IMG/bin"
        "part_$part"
        pack "$part"
        part_stamp "$part" >"$OUT/$part.stamp"
        say "part $part done: $(du -h "$OUT/$part.cpio" | cut -f1)"
    done
}
