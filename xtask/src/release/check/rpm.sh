# In the Debian of packages.sh, whose root is $0: installs the RPM packages of its /packages, uses
# them, and erases them. Their dependencies have other names in Debian.
rpm --root "$0" --initdb
rpm --root "$0" --install --nodeps "$0"/packages/*.rpm
chroot "$0" sh -ec '
    export LD_LIBRARY_PATH=/usr/lib64 PKG_CONFIG_PATH=/usr/lib64/pkgconfig
    backtrail --version
    cc -o /tmp/by-rpm /tmp/library.c $(pkg-config --cflags --libs backtrail)
    /tmp/by-rpm'
rpm --root "$0" --erase backtrail libbacktrail0 libbacktrail-devel backtrail-doc
if find "$0/usr" -name '*backtrail*' | grep .; then exit 1; fi
echo the RPM packages leave nothing
