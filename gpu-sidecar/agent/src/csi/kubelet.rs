//! Where the kubelet keeps what it has.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{CsiConfig, HostProcess};

/// Where it does unless it is told otherwise.
const DIRECTORY: &str = "/var/lib/kubelet";
/// Its name as a process.
const NAME: &str = "kubelet";
/// Its option that names the directory.
const OPTION: &str = "--root-dir";

/// The kubelet's directory, and how it is reached.
#[derive(Debug, Clone)]
pub(crate) struct Kubelet {
    /// As the kubelet names it.
    pub(crate) directory: PathBuf,
    /// The root of the file system in which that name holds, which outlives the process through which it was found; `None`: this
    /// process's own.
    root: Option<Arc<File>>,
}

impl HostProcess {
    /// Returns the process's id.
    pub(super) fn find(self) -> u32 {
        match self {
            Self::Kubelet => running().map_or(1, |(id, _)| id),
            Self::Id(id) => id,
        }
    }
}

impl Kubelet {
    /// Finds it: as configured, else as the command line of a process named `kubelet` says, else where it is on most nodes.
    ///
    /// # Errors
    /// The host's file system cannot be reached.
    pub(crate) fn find(config: &CsiConfig) -> io::Result<Self> {
        let configured = config.kubelet_directory.clone();
        let root = config.host_process.map(|process| {
            let root = format!("/proc/{}/root", process.find());
            let opened = File::open(&root);
            opened.map_err(|error| io::Error::new(error.kind(), format!("{root}: {error}")))
        });
        let given = || running().and_then(|(_, line)| given(&line));
        Ok(Self {
            directory: configured
                .or_else(given)
                .unwrap_or_else(|| PathBuf::from(DIRECTORY)),
            root: root.transpose()?.map(Arc::new),
        })
    }

    /// Returns the path by which this process reaches what the kubelet calls `path`.
    pub(crate) fn seen_from_here(&self, path: &Path) -> PathBuf {
        match &self.root {
            Some(root) => {
                let root = format!("/proc/self/fd/{}", root.as_raw_fd());
                Path::new(&root).join(path.strip_prefix("/").unwrap_or(path))
            }
            None => path.to_path_buf(),
        }
    }
}

/// Returns the id and the command line of a process named `kubelet`.
fn running() -> Option<(u32, String)> {
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

/// Returns what a command line, its arguments ended by NUL, gives as the directory.
fn given(line: &str) -> Option<PathBuf> {
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
    fn the_directory_is_taken_from_the_kubelets_command_line() {
        let given = |line: &str| given(line).map(|path| path.display().to_string());
        let equal = "/usr/bin/kubelet\0--root-dir=/data/kubelet\0--v=2\0";
        assert_eq!(given(equal).as_deref(), Some("/data/kubelet"));
        let apart = "kubelet\0--root-dir\0/data\0";
        assert_eq!(given(apart).as_deref(), Some("/data"));
        assert_eq!(given("kubelet\0--root-dir=data\0"), None);
        assert_eq!(given("kubelet\0--config=/etc/kubelet.yaml\0"), None);
    }

    #[test]
    fn paths_of_the_host_are_reached_through_its_root() {
        let host = tempfile::tempdir().unwrap();
        std::fs::create_dir(host.path().join("pods")).unwrap();
        let kubelet = Kubelet {
            directory: PathBuf::from("/"),
            root: Some(Arc::new(File::open(host.path()).unwrap())),
        };
        assert!(kubelet.seen_from_here(Path::new("/pods")).is_dir());
        assert!(!kubelet.seen_from_here(Path::new("/proc")).exists());
    }
}
