//! The memory limit of the agent's own cgroup, which counts the host memory of models.

use std::fs;
use std::path::Path;

/// Root of the hierarchy of cgroup version 2.
const ROOT: &str = "/sys/fs/cgroup";

/// Returns the smallest limit of the agent's cgroup and those around it, in bytes; `None` without a limit, or where it cannot be read.
pub(crate) fn limit() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    smallest(Path::new(ROOT), &own)
}

/// Returns the smallest limit on the path of a cgroup file's line of version 2, below a root.
fn smallest(root: &Path, own: &str) -> Option<u64> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let group = root.join(path);
    let groups = group
        .ancestors()
        .take_while(|group| group.starts_with(root));
    let limits = groups.filter_map(|group| {
        let text = fs::read_to_string(group.join("memory.max")).ok()?;
        text.trim().parse().ok()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_smallest_on_the_path() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("kubepods/pod1/agent");
        fs::create_dir_all(&group).unwrap();
        let set = |path: &str, text: &str| {
            fs::write(root.path().join(path).join("memory.max"), text).unwrap();
        };
        let own = "0::/kubepods/pod1/agent\n";
        assert_eq!(smallest(root.path(), own), None);
        set("kubepods/pod1/agent", "max\n");
        assert_eq!(smallest(root.path(), own), None);
        set("kubepods/pod1", "1000\n");
        set("kubepods", "5000\n");
        assert_eq!(smallest(root.path(), own), Some(1_000));
        // In a namespace of its own the cgroup is the root.
        assert_eq!(
            smallest(&root.path().join("kubepods/pod1"), "0::/\n"),
            Some(1_000)
        );
        assert_eq!(smallest(root.path(), "1:memory:/x\n"), None);
    }
}
