//! Kernel mounts which make up a published volume.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount};

/// Flags of all mounts of a volume: no devices and no set-user-ID programs. Not `NOEXEC`, since libraries are loaded from it,
/// even where the source has that flag.
const SAFE: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Mounts a small in-memory file system at `target`, unless it is a mount already.
///
/// # Errors
/// Returns the kernel's error.
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
/// Returns the kernel's error.
pub(super) fn seal_root(target: &Path) -> io::Result<()> {
    let flags = SAFE | MountFlags::RDONLY;
    mount_remount(target, flags, c"size=64k,mode=0755")?;
    Ok(())
}

/// Bind-mounts the folder `source` at the folder `target`, unless it is mounted there already.
///
/// # Errors
/// Returns the kernel's error; then nothing is mounted.
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
    // A bind mount has the flags of its source until they are set.
    if let Err(errno) = mount_remount(target, flags, c"") {
        let _unmounted = unmount(target, UnmountFlags::DETACH);
        return Err(errno.into());
    }
    Ok(())
}

/// Unmounts everything mounted at `target`, if anything is.
///
/// # Errors
/// Returns the kernel's error.
pub(super) fn unmount_all(target: &Path) -> io::Result<()> {
    loop {
        match unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Nothing is mounted there, or the path does not exist.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Returns whether a folder is the root of a mount.
fn is_mounted(folder: &Path) -> io::Result<bool> {
    let own = std::fs::metadata(folder)?;
    let above = std::fs::metadata(folder.join(".."))?;
    Ok(own.dev() != above.dev())
}
