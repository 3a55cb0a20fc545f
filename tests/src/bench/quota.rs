//! Processes with a limited share of a CPU.

use std::fs;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::command::prefixed;

/// Shell script which joins the control group named first and executes the remaining arguments.
const JOIN: &str = "echo $$ > \"$0\" && exec \"$@\"";

/// A control group with a CPU quota, removed when dropped.
#[derive(Debug)]
pub struct Quota {
    folder: PathBuf,
}

impl Quota {
    /// Creates a control group with this share of one CPU, in percent; `None` if this process may not create control groups.
    pub fn new(percent: u32) -> Option<Self> {
        let name = format!("weir-bench-{}", std::process::id());
        let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let (root, file, text) = if unified {
            (
                "/sys/fs/cgroup",
                "cpu.max",
                format!("{} 100000", percent * 1000),
            )
        } else {
            (
                "/sys/fs/cgroup/cpu",
                "cpu.cfs_quota_us",
                (percent * 1000).to_string(),
            )
        };
        let folder = Path::new(root).join(name);
        fs::create_dir(&folder).ok()?;
        let quota = Self { folder };
        fs::write(quota.folder.join(file), text).ok()?;
        Some(quota)
    }

    /// Returns the command, which joins the group before it runs, with its children.
    pub(super) fn within(&self, command: &Command) -> Command {
        let group = self.folder.join("cgroup.procs");
        let shell = [
            "/bin/sh".as_ref(),
            "-c".as_ref(),
            JOIN.as_ref(),
            group.as_os_str(),
        ];
        prefixed(shell, command)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // A group with a process in it stays; its name identifies the benchmark's PID.
        let _removed = fs::remove_dir(&self.folder);
    }
}
