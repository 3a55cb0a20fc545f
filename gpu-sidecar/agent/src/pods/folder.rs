//! A pod's folder: files from its creator, read defensively, and the agent's own files.
//!
//! All access goes through the folder's descriptor, so that neither a long path nor a replaced folder matters. Files are
//! replaced atomically by renaming.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Timestamps, chmodat, fstat, futimens, linkat, mkdirat,
    openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

/// Libraries loaded by user containers.
const LIBRARIES: [&str; 2] = ["libweir_preload.so", "libweir_preload_core.so"];
/// Backlog of connections waiting to be accepted.
const BACKLOG: i32 = 128;
/// Maximum size of the file `slot`, in bytes.
const SLOT_FILE_MAX: u64 = 256;

/// Identity and version of a file, to detect changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileStamp {
    device: u64,
    inode: u64,
    size: i64,
    changed: (i64, i64),
}

/// Identity and versions of a pod's folder and files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Device and inode of the folder.
    pub(super) folder: (u64, u64),
    annotations: FileStamp,
    pod_file: Option<FileStamp>,
}

/// An open pod folder.
#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

/// Returns the names in a directory, apart from those that begin with a dot, and whether the list is complete. Creates the
/// directory when it is missing.
pub(super) fn names(directory: &Path, max: usize) -> Result<(Vec<String>, bool), String> {
    use std::os::unix::fs::DirBuilderExt as _;
    let mut builder = std::fs::DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .and_then(|()| std::fs::read_dir(directory))
        .map_err(|error| error.to_string())
        .map(|entries| {
            let mut names = Vec::new();
            for (count, entry) in entries.enumerate() {
                if count >= max {
                    return (names, false);
                }
                let Ok(entry) = entry else {
                    continue;
                };
                // An invalid UTF-8 name becomes another one, which does not exist: such a folder is ignored.
                let name = entry.file_name().to_string_lossy().into_owned();
                if !name.starts_with('.') {
                    names.push(name);
                }
            }
            (names, true)
        })
}

impl Folder {
    /// Opens a pod's folder; `None` when there is no folder of this name.
    ///
    /// # Errors
    /// Returns an error when the entry is a link or must not be read.
    pub(super) fn open(directory: &Path, name: &str) -> Result<Option<Self>, String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(directory.join(name), flags, Mode::empty()) {
            Ok(folder) => Ok(Some(Self(folder))),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let is_link = std::fs::symlink_metadata(directory.join(name))
                    .is_ok_and(|about| about.is_symlink());
                if is_link {
                    Err("is a symbolic link, and links are not followed".to_owned())
                } else {
                    // A file in the directory is not a pod.
                    Ok(None)
                }
            }
            Err(errno) => Err(std::io::Error::from(errno).to_string()),
        }
    }

    /// Returns the identity and version of a file; `None` when it is missing.
    fn stamp_of(&self, name: &str) -> Result<Option<FileStamp>, String> {
        match statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(about) => Ok(Some(FileStamp {
                device: about.st_dev,
                inode: about.st_ino,
                size: about.st_size,
                changed: (about.st_ctime, about.st_ctime_nsec.try_into().unwrap_or(0)),
            })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(format!("{name}: {}", std::io::Error::from(errno))),
        }
    }

    /// Returns the versions of the files in the folder; `None` when the folder is not a pod.
    pub(super) fn stamp(&self) -> Result<Option<Stamp>, String> {
        let Some(annotations) = self.stamp_of("annotations")? else {
            return Ok(None);
        };
        let own = fstat(&self.0).map_err(|errno| std::io::Error::from(errno).to_string())?;
        Ok(Some(Stamp {
            folder: (own.st_dev, own.st_ino),
            annotations,
            pod_file: self.stamp_of("pod.toml")?,
        }))
    }

    /// Reads a UTF-8 text file of at most `max` bytes; `None` when it is missing.
    pub(super) fn read(&self, name: &str, max: u64) -> Result<Option<String>, String> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match openat(&self.0, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => {
                return Err(format!(
                    "{name}: is a symbolic link, and links are not followed"
                ));
            }
            Err(errno) => return Err(format!("{name}: {}", std::io::Error::from(errno))),
        };
        if !file.metadata().is_ok_and(|about| about.is_file()) {
            return Err(format!("{name}: is not a regular file"));
        }
        let mut bytes = Vec::new();
        file.take(max + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| format!("{name}: {error}"))?;
        if bytes.len() as u64 > max {
            return Err(format!("{name}: is larger than {max} bytes"));
        }
        String::from_utf8(bytes).map(Some).map_err(|error| {
            format!(
                "{name}: is not UTF-8 at byte {}",
                error.utf8_error().valid_up_to()
            )
        })
    }

    /// Replaces a file atomically.
    fn write(&self, name: &str, text: &str) -> Result<(), Errno> {
        let temporary = format!(".{name}.new");
        remove(&self.0, &temporary)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.0, &*temporary, flags, Mode::from_raw_mode(0o644))?;
        File::from(file)
            .write_all(text.as_bytes())
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        renameat(&self.0, &*temporary, &self.0, name)
    }

    /// Writes the reason of a refusal into the folder. On failure it is only in the events.
    pub(super) fn write_refused(&self, text: &str) {
        let _full = self.write("refused", &format!("{text}\n"));
    }

    /// Removes the file `refused`.
    pub(super) fn clear_refused(&self) {
        let _gone = remove(&self.0, "refused");
    }

    /// Writes the slot's UUID for a later agent.
    pub(super) fn write_slot(&self, uuid: &str) {
        if let Err(errno) = self.write("slot", &format!("{uuid}\n")) {
            tracing::warn!(%errno, uuid, "cannot write the pod's slot: a later agent may place the pod elsewhere");
        }
    }

    /// Returns the UUID of the slot written by an agent.
    pub(super) fn slot(&self) -> Option<String> {
        let text = self.read("slot", SLOT_FILE_MAX).ok()??;
        Some(text.trim().to_owned())
    }

    /// Removes the sockets, so that no more processes connect.
    pub(super) fn close_gate(&self) {
        for (part, socket) in [
            ("gate", protocol::GPU_SOCKET),
            ("lease", protocol::QUEUE_SOCKET),
        ] {
            let _gone = unlinkat(&self.0, format!("{part}/{socket}"), AtFlags::empty());
        }
    }

    /// Creates a folder of the agent's own in the pod's folder.
    fn part(&self, name: &str) -> Result<OwnedFd, Errno> {
        match mkdirat(&self.0, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.0, name, flags, Mode::empty())
    }

    /// Creates `lease/` with the socket for the queue of the pod's requests. Returns the listening socket.
    pub(super) fn open_lease(&self) -> Result<OwnedFd, String> {
        let socket = protocol::QUEUE_SOCKET;
        let opened = self.part("lease").and_then(|part| listen_in(&part, socket));
        opened.map_err(|errno| format!("lease/{socket}: {}", std::io::Error::from(errno)))
    }

    /// Creates `gate/` with the libraries and the socket. Returns the listening socket, and a description of a missing library.
    pub(super) fn open_gate(
        &self,
        preload: Option<&Path>,
    ) -> Result<(OwnedFd, Option<String>), String> {
        let wrong = |what: &str| {
            let what = what.to_owned();
            move |errno: Errno| format!("{what}: {}", std::io::Error::from(errno))
        };
        let gate = self.part("gate").map_err(wrong("gate"))?;
        let mut missing = None;
        for library in LIBRARIES {
            let source = preload.map(|folder| folder.join(library));
            let published = match &source {
                Some(source) => publish(source, &gate, library),
                None => Err(Errno::NOENT),
            };
            if let Err(errno) = published {
                let source = source.unwrap_or_else(|| PathBuf::from(library));
                let why = std::io::Error::from(errno);
                missing = Some(format!(
                    "{}: {why}; pods are served, but their programs are not gated; set node.preload to the folder of \
                     the libraries",
                    source.display()
                ));
            }
        }
        let listener = listen_in(&gate, protocol::GPU_SOCKET).map_err(wrong("gate/gpu.sock"))?;
        Ok((listener, missing))
    }
}

fn remove(folder: &OwnedFd, name: &str) -> Result<(), Errno> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Places a library in a gate, as a hard link where possible, unless it is there already.
fn publish(source: &Path, gate: &OwnedFd, name: &str) -> Result<(), Errno> {
    let about = rustix::fs::stat(source)?;
    if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    if let Ok(there) = statat(gate, name, AtFlags::SYMLINK_NOFOLLOW) {
        let is_link = (there.st_dev, there.st_ino) == (about.st_dev, about.st_ino);
        let written = |own: &rustix::fs::Stat| (own.st_size, own.st_mtime, own.st_mtime_nsec);
        let is_file = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile;
        if is_link || is_file && written(&there) == written(&about) {
            return Ok(());
        }
    }
    let temporary = format!(".{name}.new");
    remove(gate, &temporary)?;
    if linkat(CWD, source, gate, &*temporary, AtFlags::SYMLINK_FOLLOW).is_err() {
        let io = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let mut from = File::open(source).map_err(io)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let copy = openat(gate, &*temporary, flags, Mode::from_raw_mode(0o755))?;
        let mut copy = File::from(copy);
        std::io::copy(&mut from, &mut copy).map_err(io)?;
        // A later agent recognises the copy by its time.
        let time = rustix::fs::Timespec {
            tv_sec: about.st_mtime,
            tv_nsec: about.st_mtime_nsec.try_into().unwrap_or(0),
        };
        futimens(
            &copy,
            &Timestamps {
                last_access: time,
                last_modification: time,
            },
        )?;
    }
    renameat(gate, &*temporary, gate, name)
}

/// Creates a socket in a folder, which replaces that of an earlier agent atomically.
fn listen_in(gate: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let temporary = format!(".{name}.new");
    remove(gate, &temporary)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let path = format!("/proc/self/fd/{}/{temporary}", gate.as_raw_fd());
    bind(&socket, &SocketAddrUnix::new(path.as_str())?)?;
    // Containers run as any user; access follows from the mount of the folder.
    chmodat(
        gate,
        &*temporary,
        Mode::from_raw_mode(0o666),
        AtFlags::empty(),
    )?;
    listen(&socket, BACKLOG)?;
    renameat(gate, &*temporary, gate, name)?;
    Ok(socket)
}
