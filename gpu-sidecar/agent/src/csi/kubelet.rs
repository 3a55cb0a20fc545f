//! Location of the kubelet's directory, and access to it from this process.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{CsiConfig, HostProcess};

/// Default directory of the kubelet.
const DIRECTORY: &str = "/var/lib/kubelet";
/// Process name of the kubelet.
const NAME: &str = "kubelet";
/// Option of the kubelet for the directory.
const OPTION: &str = "--root-dir";

/// The kubelet's directory and the root of its file system.
#[derive(Debug, Clone)]
pub(crate) struct Kubelet {
    /// Path of the directory in the kubelet's file system.
    pub(crate) directory: PathBuf,
    /// Root of the kubelet's file system, which stays open when the process through which it was found ends; `None`: this
    /// process's own root.
    root: Option<Arc<File>>,
}

impl HostProcess {
    /// Returns the process ID.
    pub(super) fn find(self) -> u32 {
        match self {
            Self::Kubelet => find_process().map_or(1, |(id, _)| id),
            Self::Id(id) => id,
        }
    }
}

impl Kubelet {
    /// Finds the kubelet's directory: as configured, else from the command line of a process named `kubelet`, else the default.
    ///
    /// # Errors
    /// Returns an error when the host's file system cannot be opened.
    pub(crate) fn find(config: &CsiConfig) -> io::Result<Self> {
        let configured = config.kubelet_directory.clone();
        let root = config.host_process.map(|process| {
            let root = format!("/proc/{}/root", process.find());
            let opened = File::open(&root);
            opened.map_err(|error| io::Error::new(error.kind(), format!("{root}: {error}")))
        });
        let root_dir_of = || find_process().and_then(|(_, line)| root_dir_of(&line));
        Ok(Self {
            directory: configured
                .or_else(root_dir_of)
                .unwrap_or_else(|| PathBuf::from(DIRECTORY)),
            root: root.transpose()?.map(Arc::new),
        })
    }

    /// Returns the path under which this process reaches the kubelet's `path`.
    pub(crate) fn local_path(&self, path: &Path) -> PathBuf {
        match &self.root {
            Some(root) => {
                let root = format!("/proc/self/fd/{}", root.as_raw_fd());
                Path::new(&root).join(path.strip_prefix("/").unwrap_or(path))
            }
            None => path.to_path_buf(),
        }
    }
}

/// Returns the ID and the command line of a process named `kubelet`.
fn find_process() -> Option<(u32, String)> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut processes = processes.map(|entry| entry.path());
    processes.find_map(|process| {
        let name = std::fs::read_to_string(process.join("comm")).ok()?;
        if name.trim_end() != NAME {
            return None;
        }
        let id = process.file_name()?.to_str()?.parse().ok()?;
        let line = std::fs::read(process.join("cmdline")).ok()?;
        Some((id, String::from_utf8_lossy(&line).into_owned()))
    })
}

/// Returns the directory root_dir_of by a command line with NUL-terminated arguments.
fn root_dir_of(line: &str) -> Option<PathBuf> {
    let mut arguments = line.split('\0');
    while let Some(argument) = arguments.next() {
        let value = if argument == OPTION {
            arguments.next()
        } else {
            let rest = argument.strip_prefix(OPTION);
            rest.and_then(|rest| rest.strip_prefix('='))
        };
        if let Some(value) = value {
            return Some(PathBuf::from(value)).filter(|path| path.is_absolute());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_read_from_the_command_line() {
        let root_dir_of = |line: &str| root_dir_of(line).map(|path| path.display().to_string());
        let equal = "/usr/bin/kubelet\0--root-dir=/data/kubelet\0--v=2\0";
        assert_eq!(root_dir_of(equal).as_deref(), Some("/data/kubelet"));
        let apart = "kubelet\0--root-dir\0/data\0";
        assert_eq!(root_dir_of(apart).as_deref(), Some("/data"));
        assert_eq!(root_dir_of("kubelet\0--root-dir=data\0"), None);
        assert_eq!(root_dir_of("kubelet\0--config=/etc/kubelet.yaml\0"), None);
    }

    #[test]
    fn paths_of_the_host_are_reached_through_its_root() {
        let host = tempfile::tempdir().unwrap();
        std::fs::create_dir(host.path().join("pods")).unwrap();
        let kubelet = Kubelet {
            directory: PathBuf::from("/"),
            root: Some(Arc::new(File::open(host.path()).unwrap())),
        };
        assert!(kubelet.local_path(Path::new("/pods")).is_dir());
        assert!(!kubelet.local_path(Path::new("/proc")).exists());
    }
}
