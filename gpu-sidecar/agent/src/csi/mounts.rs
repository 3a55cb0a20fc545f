//! Mounts of the kernel's: what a published volume is made of.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount};

/// What is in a volume holds no devices and gives nobody rights. Libraries are loaded from it: it is not `NOEXEC`, even where what
/// it comes from is.
const SAFE: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Makes `target` a file system of its own, in memory and of a few pages, unless it is one.
///
/// # Errors
/// The kernel refuses.
pub(super) fn make_root(target: &Path) -> io::Result<()> {
    if is_mounted(target)? {
        return Ok(());
    }
    let options = c"size=64k,mode=0755";
    mount("weir", target, "tmpfs", SAFE, options)?;
    Ok(())
}

/// Makes the file system of [`make_root`] read-only.
///
/// # Errors
/// The kernel refuses.
pub(super) fn seal_root(target: &Path) -> io::Result<()> {
    let flags = SAFE | MountFlags::RDONLY;
    mount_remount(target, flags, c"size=64k,mode=0755")?;
    Ok(())
}

/// Shows the folder `source` at the folder `target` too, unless it is there already.
///
/// # Errors
/// The kernel refuses: nothing is mounted then.
pub(super) fn bind(source: &Path, target: &Path, is_read_only: bool) -> io::Result<()> {
    let (from, to) = (std::fs::metadata(source)?, std::fs::metadata(target)?);
    if (from.dev(), from.ino()) == (to.dev(), to.ino()) {
        return Ok(());
    }
    mount_bind(source, target)?;
    let mut flags = SAFE | MountFlags::BIND;
    if is_read_only {
        flags |= MountFlags::RDONLY;
    }
    // A bind has the flags of what it comes from, until they are set.
    if let Err(errno) = mount_remount(target, flags, c"") {
        let _taken_back = unmount(target, UnmountFlags::DETACH);
        return Err(errno.into());
    }
    Ok(())
}

/// Takes back all that is mounted at `target`; nothing may be.
///
/// # Errors
/// The kernel refuses.
pub(super) fn take_back(target: &Path) -> io::Result<()> {
    loop {
        match unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Nothing is mounted there, or there is nothing.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Whether a folder is the root of a mount.
fn is_mounted(folder: &Path) -> io::Result<bool> {
    let own = std::fs::metadata(folder)?;
    let above = std::fs::metadata(folder.join(".."))?;
    Ok(own.dev() != above.dev())
}
