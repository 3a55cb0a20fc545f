//! A folder in which programs find the stand-ins under NVIDIA's names, with its configuration.
//!
//! | name | what |
//! |---|---|
//! | `libcuda.so.1`, `libcuda.so` | the driver's library; the second is a link to the first |
//! | `libnvidia-ml.so.1` | NVML |
//! | `nvidia-cuda-mps-control`, `softgpu-server` | the programs: hard links where the file system allows, else copies |
//! | `softgpu.toml` | the configuration |
//!
//! Each comes into its place whole, by a rename, and what is there already as it should be is left alone: programs that run
//! keep what they have loaded. The programs are no symbolic links: they look for their folder where they themselves lie.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use softgpu_wire::config::{Config, ConfigError};
use softgpu_wire::place::{self, PlaceError};

use crate::observer::{Observer, ObserverError};
use crate::stand_ins::{CUDA, CUDA_SHORT, NVML, StandIns, StandInsError};

/// A server that a program has started ends 5 s after the last one is gone: this long it is waited for.
const SERVER_ENDS: Duration = Duration::from_millis(6_500);
/// How often it is looked whether it has ended.
const LOOK_AFTER: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// The folder is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A stand-in is missing.
    #[error(transparent)]
    StandIns(#[from] StandInsError),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// That of the folder cannot be used.
    #[error("{path}: {error}", path = .path.display())]
    Configured {
        /// The file.
        path: PathBuf,
        /// Why.
        error: Box<ConfigError>,
    },
    /// A file cannot be made or read.
    #[error("{path}: {error}", path = .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The lock cannot be had.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Who runs in the folder cannot be asked.
    #[error(transparent)]
    Observer(#[from] ObserverError),
    /// Somebody holds the lock, and no server listens.
    #[error("{path}: another process holds it", path = .path.display())]
    Locked {
        /// The lock.
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
        /// Where.
        folder: PathBuf,
        /// The server's process.
        pid: i32,
        /// Programs that compute and are connected to it.
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

/// Installs the stand-ins that lie beside the running executable, and the configuration.
///
/// Where a server runs in the folder with another configuration, it is waited for if no program uses it, for 6.5 s: one
/// that a program has started ends by itself. That is said on standard error.
///
/// # Errors
/// A stand-in is missing, a file cannot be made, or a server runs there with another configuration; then nothing of the
/// folder's configuration was changed.
pub fn install(folder: &Path, config: &Config) -> Result<(), InstallError> {
    StandIns::find()?.install(folder, config)
}

/// The configuration of a folder; `None`: it has none.
///
/// # Errors
/// The file cannot be read, or not be used; the error names it.
pub fn configured(folder: &Path) -> Result<Option<Config>, InstallError> {
    let path = folder.join(place::CONFIG);
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

/// Makes a folder for a software GPU where there is none.
///
/// # Errors
/// It cannot be made.
pub fn make_folder(folder: &Path) -> Result<(), InstallError> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder);
    made.map_err(in_file(folder))
}

impl StandIns {
    /// Installs these, as [`install`] does.
    ///
    /// # Errors
    /// As [`install`].
    pub fn install(&self, folder: &Path, config: &Config) -> Result<(), InstallError> {
        config.check()?;
        make_folder(folder)?;
        configure(folder, config)?;
        place_copy(&self.cuda, &folder.join(CUDA))?;
        place_link(CUDA, &folder.join(CUDA_SHORT))?;
        place_copy(&self.nvml, &folder.join(NVML))?;
        place_program(&self.mps_control, &folder.join(softgpu_mps::CONTROL))?;
        place_program(&self.server, &folder.join(place::SERVER))
    }
}

fn in_file(path: &Path) -> impl FnOnce(std::io::Error) -> InstallError {
    move |error| InstallError::File {
        path: path.to_path_buf(),
        error,
    }
}

/// Writes the configuration, unless the file says the same already.
fn configure(folder: &Path, config: &Config) -> Result<(), InstallError> {
    let lock = lock_out(folder, config)?;
    let is_same = matches!(configured(folder), Ok(Some(own)) if own == *config);
    if !is_same {
        let path = folder.join(place::CONFIG);
        replace(&path, |new| fs::write(new, config.text()))?;
    }
    drop(lock);
    Ok(())
}

/// Sees to it that no server starts before the lock is dropped; `None`: one runs, with this configuration.
fn lock_out(folder: &Path, config: &Config) -> Result<Option<OwnedFd>, InstallError> {
    let begin = Instant::now();
    let mut other = None;
    loop {
        if let Some(lock) = place::lock(folder, false)? {
            return Ok(Some(lock));
        }
        // A server does not end while somebody looks at it: that is done once.
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
            // Nobody to tell if this fails.
            let _written = writeln!(
                std::io::stderr(),
                "{}: waiting up to {} s for the server with another configuration (process {pid}) to end: no program \
                 uses it",
                folder.display(),
                SERVER_ENDS.as_secs_f64(),
            );
            other = Some(pid);
        }
        if begin.elapsed() > SERVER_ENDS {
            return Err(match other {
                Some(pid) => busy(folder, pid, 0),
                None => InstallError::Locked {
                    path: folder.join(place::LOCK),
                },
            });
        }
        let _slept = poll(&mut [], Some(&LOOK_AFTER));
    }
}

fn busy(folder: &Path, pid: i32, clients: u64) -> InstallError {
    InstallError::Busy {
        folder: folder.to_path_buf(),
        pid,
        clients,
    }
}

/// Makes a file under another name and gives it its own when it is whole.
fn replace(
    path: &Path,
    make: impl FnOnce(&Path) -> std::io::Result<()>,
) -> Result<(), InstallError> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let new = path.with_file_name(format!(".{name}.{}.{number}", std::process::id()));
    let made = make(&new).and_then(|()| fs::rename(&new, path));
    if made.is_err() {
        let _gone = fs::remove_file(&new);
    }
    made.map_err(in_file(path))
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
    // What is linked is the file itself, also where `from` is a symbolic link to it.
    let from = from.canonicalize().map_err(in_file(from))?;
    replace(path, |new| {
        fs::hard_link(&from, new).or_else(|_| fs::copy(&from, new).map(|_| ()))
    })
}

/// Whether a file is a copy of, or the same file as, another; symbolic links are no copies.
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
    fn all_names_are_there_and_what_is_right_is_left_alone() {
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
    fn what_cannot_be_is_named() {
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
