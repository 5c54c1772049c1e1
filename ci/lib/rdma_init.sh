#!/bin/sh
# The first program of the guest, in its initial file system: it mounts the machine's root folder under a layer
# in memory, adds what the image has, and continues there with rdma_second.sh.
fail() {
  echo "rdma: guest: $*"
  /bin/busybox sync
  /bin/busybox poweroff -f
}

/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs dev /dev
for module in /modules/*.ko; do
  /bin/busybox insmod "$module" || fail "cannot load ${module##*/}"
done

for _ in 1 2 3 4 5 6 7 8 9 10; do
  [ -b /dev/vda ] && break
  /bin/busybox sleep 1
done
/bin/busybox mount -t ext4 -o ro /dev/vda /image || fail "no image"
/bin/busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro root /low || fail "no root"
/bin/busybox mount -t tmpfs -o size=512m top /top
/bin/busybox mkdir /top/upper /top/work
/bin/busybox mount -t overlay -o lowerdir=/low,upperdir=/top/upper,workdir=/top/work root /new || fail "no overlay"

# The packages have /lib beside /usr/lib; in the root folder the one may be a link to the other.
(cd /image/system && for folder in *; do
  [ -d "$folder" ] && /bin/busybox mkdir -p "/new/$folder" && /bin/busybox cp -a "$folder/." "/new/$folder/"
done)

# shellcheck source=/dev/null
. /image/settings
/bin/busybox mount --bind /image/site "/new$SITE" || fail "no $SITE"
/bin/busybox mount --bind /image/stdlib "/new$STDLIB" || fail "no $STDLIB"
/bin/busybox mkdir -p /new/run/image /new/proc /new/sys /new/dev /new/tmp
/bin/busybox mount --bind /image /new/run/image
for each in proc sys dev; do
  /bin/busybox mount --move "/$each" "/new/$each"
done
/bin/busybox mount -t tmpfs tmp /new/tmp
exec /bin/busybox switch_root /new /bin/bash /run/image/rdma_second.sh
