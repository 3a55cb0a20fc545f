//! Installation of the stand-ins under NVIDIA's names in a folder, with a configuration.
//!
//! | name | contents |
//! |---|---|
//! | `libcuda.so.1`, `libcuda.so` | the driver's library; the second is a link to the first |
//! | `libnvidia-ml.so.1` | NVML |
//! | `nvidia-cuda-mps-control`, `softgpu-server` | the programs: hard links where the file system allows, else copies |
//! | `softgpu.toml` | the configuration |
//!
//! Each file is put in place atomically by a rename, and a file that is already correct is left alone: running programs
//! keep what they have loaded. The programs are not symbolic links, because they look for their folder by their own
//! path.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use softgpu_wire::config::{Config, ConfigError};
use softgpu_wire::softgpu_dir::{self, SoftGpuDirError};

use crate::observer::{Observer, ObserverError};
use crate::stand_ins::{CUDA, CUDA_SHORT, NVML, StandIns, StandInsError};

/// Largest time to wait for an unused server, which ends 5 s after its last client.
const SERVER_END_MAX: Duration = Duration::from_millis(6_500);
/// Interval at which the end of a server is polled.
const CHECK_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Reason for which an installation failed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A stand-in is missing.
    #[error(transparent)]
    StandIns(#[from] StandInsError),
    /// The requested configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The folder's configuration is invalid.
    #[error("{path}: {error}", path = .path.display())]
    Configured {
        /// Path of the configuration.
        path: PathBuf,
        error: Box<ConfigError>,
    },
    /// A file cannot be created or read.
    #[error("{path}: {error}", path = .path.display())]
    File {
        path: PathBuf,
        error: std::io::Error,
    },
    /// The lock of the folder cannot be taken.
    #[error(transparent)]
    Dir(#[from] SoftGpuDirError),
    /// The server of the folder cannot be queried.
    #[error(transparent)]
    Observer(#[from] ObserverError),
    /// Another process holds the lock, but no server listens.
    #[error("{path}: locked by another process", path = .path.display())]
    Locked {
        /// Path of the lock.
        path: PathBuf,
    },
    /// A server runs in the folder with another configuration.
    #[error(
        "{folder}: a server with another configuration runs there (process {pid}) and {users}; wait until it has ended, \
         end it with `kill {pid}`, or take another folder",
        folder = .folder.display(),
        users = users(*.clients)
    )]
    Busy {
        folder: PathBuf,
        /// PID of the server.
        pid: i32,
        /// Number of computing programs connected to it.
        clients: u64,
    },
}

fn users(clients: u64) -> String {
    match clients {
        0 => "does not end by itself".to_owned(),
        1 => "1 program uses it".to_owned(),
        more => format!("{more} programs use it"),
    }
}

/// Installs the stand-ins found beside the running executable, and the configuration.
///
/// If a server without clients runs in the folder with another configuration, waits up to 6.5 s for it to end by
/// itself, and reports that on standard error.
///
/// # Errors
/// Fails when a stand-in is missing, a file cannot be created, or a server runs there with another configuration; in
/// the last case the folder's configuration is unchanged.
pub fn install(folder: &Path, config: &Config) -> Result<(), InstallError> {
    StandIns::find()?.install(folder, config)
}

/// Returns the configuration of a folder, or `None` if it has none.
///
/// # Errors
/// Fails when the file cannot be read or is invalid; the error names it.
pub fn configured(folder: &Path) -> Result<Option<Config>, InstallError> {
    let path = folder.join(softgpu_dir::CONFIG);
    match fs::read_to_string(&path) {
        Ok(text) => match Config::parse(&text) {
            Ok(config) => Ok(Some(config)),
            Err(error) => Err(InstallError::Configured {
                path,
                error: Box::new(error),
            }),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(InstallError::File { path, error }),
    }
}

/// Creates a folder for a software GPU, if it does not exist.
///
/// # Errors
/// Fails when the folder cannot be created.
pub fn make_folder(folder: &Path) -> Result<(), InstallError> {
    let created = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder);
    created.map_err(in_file(folder))
}

impl StandIns {
    /// Installs these stand-ins, like [`install`].
    ///
    /// # Errors
    /// Fails in the same cases as [`install`].
    pub fn install(&self, folder: &Path, config: &Config) -> Result<(), InstallError> {
        config.check()?;
        make_folder(folder)?;
        configure(folder, config)?;
        place_copy(&self.cuda, &folder.join(CUDA))?;
        place_link(CUDA, &folder.join(CUDA_SHORT))?;
        place_copy(&self.nvml, &folder.join(NVML))?;
        place_program(&self.mps_control, &folder.join(softgpu_mps::CONTROL))?;
        place_program(&self.server, &folder.join(softgpu_dir::SERVER))
    }
}

fn in_file(path: &Path) -> impl FnOnce(std::io::Error) -> InstallError {
    move |error| InstallError::File {
        path: path.to_path_buf(),
        error,
    }
}

/// Writes the software GPU's configuration into its folder, unless the file already contains it. Waits for a server with another
/// configuration to end; fails while a program uses it.
fn configure(folder: &Path, config: &Config) -> Result<(), InstallError> {
    let lock = block_server(folder, config)?;
    let is_same = matches!(configured(folder), Ok(Some(own)) if own == *config);
    if !is_same {
        let path = folder.join(softgpu_dir::CONFIG);
        replace(&path, |new| fs::write(new, config.text()))?;
    }
    drop(lock);
    Ok(())
}

/// Takes the lock that prevents a server from starting; returns `None` if one runs with this configuration.
fn block_server(folder: &Path, config: &Config) -> Result<Option<OwnedFd>, InstallError> {
    let begin = Instant::now();
    let mut other = None;
    loop {
        if let Some(lock) = softgpu_dir::lock(folder, false)? {
            return Ok(Some(lock));
        }
        // A connected observer keeps a server alive, so it is queried only once.
        if other.is_none()
            && let Some(observer) = Observer::open(folder)?
        {
            if observer.config == *config {
                return Ok(None);
            }
            let (pid, clients) = (observer.pid, observer.clients()?);
            if clients > 0 {
                return Err(busy(folder, pid, clients));
            }
            // A failed write to standard error cannot be reported anywhere.
            let _written = writeln!(
                std::io::stderr(),
                "{}: waiting up to {} s for the server with another configuration (process {pid}) to end: no program \
                 uses it",
                folder.display(),
                SERVER_END_MAX.as_secs_f64(),
            );
            other = Some(pid);
        }
        if begin.elapsed() > SERVER_END_MAX {
            return Err(match other {
                Some(pid) => busy(folder, pid, 0),
                None => InstallError::Locked {
                    path: folder.join(softgpu_dir::LOCK),
                },
            });
        }
        let _slept = poll(&mut [], Some(&CHECK_INTERVAL));
    }
}

fn busy(folder: &Path, pid: i32, clients: u64) -> InstallError {
    InstallError::Busy {
        folder: folder.to_path_buf(),
        pid,
        clients,
    }
}

/// Creates a file under a temporary name, then renames it.
fn replace(
    path: &Path,
    make: impl FnOnce(&Path) -> std::io::Result<()>,
) -> Result<(), InstallError> {
    static CREATED: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let number = CREATED.fetch_add(1, Ordering::Relaxed);
    let new = path.with_file_name(format!(".{name}.{}.{number}", std::process::id()));
    let created = make(&new).and_then(|()| fs::rename(&new, path));
    if created.is_err() {
        let _gone = fs::remove_file(&new);
    }
    created.map_err(in_file(path))
}

fn place_link(to: &str, path: &Path) -> Result<(), InstallError> {
    if fs::read_link(path).is_ok_and(|own| own == Path::new(to)) {
        return Ok(());
    }
    replace(path, |new| std::os::unix::fs::symlink(to, new))
}

fn place_copy(from: &Path, path: &Path) -> Result<(), InstallError> {
    if is_same(from, path).map_err(in_file(from))? {
        return Ok(());
    }
    replace(path, |new| fs::copy(from, new).map(|_| ()))
}

fn place_program(from: &Path, path: &Path) -> Result<(), InstallError> {
    if is_same(from, path).map_err(in_file(from))? {
        return Ok(());
    }
    // A hard link to the file itself, even if `from` is a symbolic link.
    let from = from.canonicalize().map_err(in_file(from))?;
    replace(path, |new| {
        fs::hard_link(&from, new).or_else(|_| fs::copy(&from, new).map(|_| ()))
    })
}

/// Returns whether a file is the same as, or a copy of, another; symbolic links are not copies.
fn is_same(from: &Path, path: &Path) -> std::io::Result<bool> {
    let about = from.metadata()?;
    let Ok(own) = path.symlink_metadata() else {
        return Ok(false);
    };
    if (about.dev(), about.ino()) == (own.dev(), own.ino()) {
        return Ok(true);
    }
    if !own.is_file() || about.len() != own.len() || about.mode() != own.mode() {
        return Ok(false);
    }
    let (mut one, mut other) = (fs::File::open(from)?, fs::File::open(path)?);
    let (mut ones, mut others) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let read = one.read(&mut ones)?;
        if read == 0 {
            return Ok(true);
        }
        if other.read_exact(&mut others[..read]).is_err() || ones[..read] != others[..read] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stand_ins(folder: &Path) -> StandIns {
        let file = |name: &str| {
            let path = folder.join(name);
            fs::write(&path, name).unwrap();
            path
        };
        StandIns {
            cuda: file("cuda"),
            nvml: file("nvml"),
            mps_control: file("program"),
            server: file("program"),
        }
    }

    fn inode(path: &Path) -> u64 {
        path.symlink_metadata().unwrap().ino()
    }

    #[test]
    fn all_files_are_installed_and_correct_ones_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let from = stand_ins(place.path());
        let folder = place.path().join("a/folder");
        let config = Config::parse("bytes = 64").unwrap();
        from.install(&folder, &config).unwrap();
        for (name, content) in [
            ("libcuda.so.1", "cuda"),
            ("libcuda.so", "cuda"),
            ("libnvidia-ml.so.1", "nvml"),
            ("nvidia-cuda-mps-control", "program"),
            ("softgpu-server", "program"),
        ] {
            assert_eq!(fs::read_to_string(folder.join(name)).unwrap(), content);
        }
        assert_eq!(configured(&folder).unwrap().unwrap(), config);
        assert_eq!(
            inode(&folder.join("softgpu-server")),
            inode(&place.path().join("program"))
        );

        let files: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        let before: Vec<_> = files.iter().map(|path| inode(path)).collect();
        from.install(&folder, &config).unwrap();
        let after: Vec<_> = files.iter().map(|path| inode(path)).collect();
        assert_eq!(before, after);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), files.len());

        fs::write(&from.cuda, "CUDA").unwrap();
        from.install(&folder, &Config::default()).unwrap();
        assert_eq!(
            fs::read_to_string(folder.join("libcuda.so")).unwrap(),
            "CUDA"
        );
        assert_eq!(configured(&folder).unwrap().unwrap(), Config::default());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), files.len());
    }

    #[test]
    fn errors_name_the_cause() {
        let place = tempfile::tempdir().unwrap();
        let from = stand_ins(place.path());
        let file = place.path().join("file");
        fs::write(&file, "").unwrap();
        let error = from.install(&file.join("folder"), &Config::default());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("file/folder: "), "{error}");

        let mut missing = from.clone();
        missing.nvml = place.path().join("missing");
        let error = missing.install(&place.path().join("folder"), &Config::default());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("/missing: "), "{error}");

        let config = Config {
            time: 9,
            ..Config::default()
        };
        let error = from.install(&place.path().join("other"), &config);
        assert!(error.unwrap_err().to_string().contains("1 to 8"));
        assert!(!place.path().join("other").exists());
    }
}
