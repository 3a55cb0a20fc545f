//! The pod of a process, derived from its cgroup, which a process in a container cannot choose.
//!
//! | driver | path |
//! |---|---|
//! | systemd | `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid with _>.slice/cri-containerd-….scope` |
//! | cgroupfs | `/kubepods/burstable/pod<uid>/…` |
//!
//! Version 1 has a line for each hierarchy, version 2 one line (`0::…`). On a node that is a container itself (kind) the path
//! begins with that container's path; where several components of a path name a pod, the last one counts, since it is the
//! innermost.

use std::path::Path;

/// Maximum number of bytes read from a cgroup file.
const FILE_MAX: u64 = 64 * 1024;

/// Returns the UID of the pod named by a cgroup file; `None` when no line names a pod, or lines name different pods.
#[must_use]
pub fn pod_uid(cgroup: &str) -> Option<String> {
    let mut found: Option<String> = None;
    for line in cgroup.lines() {
        // `hierarchy:controllers:path`; the path may contain colons.
        let path = line.splitn(3, ':').nth(2)?;
        let Some(uid) = path.rsplit('/').find_map(uid_of_part) else {
            continue;
        };
        match &found {
            Some(other) if *other != uid => return None,
            _ => found = Some(uid),
        }
    }
    found
}

/// Returns the UID in a path component: `kubepods-besteffort-pod<uid with _>.slice`, `kubepods-pod….slice` or `pod<uid>`.
fn uid_of_part(part: &str) -> Option<String> {
    // containerd with systemd and cgroup version 1 appends container and runtime after a colon.
    let part = part.split(':').next()?;
    let uid = match part.strip_suffix(".slice") {
        Some(slice) => {
            let slice = slice.strip_prefix("kubepods-").or_else(|| {
                // A node's cgroup root may precede it, as in `kubelet-kubepods-…`.
                slice.split_once("-kubepods-").map(|(_, rest)| rest)
            })?;
            let slice = ["burstable-", "besteffort-"]
                .into_iter()
                .find_map(|class| slice.strip_prefix(class))
                .unwrap_or(slice);
            slice.strip_prefix("pod")?.replace('_', "-")
        }
        None => part.strip_prefix("pod")?.to_owned(),
    };
    is_uid(&uid).then_some(uid)
}

/// Returns whether the text is a pod UID: a UUID, or the 32 hexadecimal digits of a static pod.
pub(crate) fn is_uid(text: &str) -> bool {
    let hexadecimal = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let lengths: Vec<_> = text.split('-').map(str::len).collect();
    (lengths == [8, 4, 4, 4, 12] || lengths == [32]) && text.split('-').all(hexadecimal)
}

/// Returns the UID of the pod of a process; `Ok(None)` when the process belongs to no pod.
///
/// # Errors
/// Returns an error when the process has ended or its cgroup cannot be read.
pub fn pod_uid_of(pid: u32) -> std::io::Result<Option<String>> {
    pod_uid_in(Path::new("/proc"), pid)
}

fn pod_uid_in(proc: &Path, pid: u32) -> std::io::Result<Option<String>> {
    use std::io::Read as _;
    let mut text = String::new();
    let file = std::fs::File::open(proc.join(pid.to_string()).join("cgroup"))?;
    file.take(FILE_MAX).read_to_string(&mut text)?;
    Ok(pod_uid(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "1f8c2ab0-7d3e-4c51-9d0a-5b1f0c6e7a22";
    const UID_SYSTEMD: &str = "1f8c2ab0_7d3e_4c51_9d0a_5b1f0c6e7a22";

    #[test]
    fn paths_of_every_cgroup_driver_name_the_pod() {
        let scope = "cri-containerd-3b1f.scope";
        for path in [
            format!(
                "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID_SYSTEMD}.slice/{scope}"
            ),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_SYSTEMD}.slice/{scope}"
            ),
            format!("0::/kubepods.slice/kubepods-pod{UID_SYSTEMD}.slice/{scope}"),
            format!("0::/kubepods/burstable/pod{UID}/3b1f"),
            format!("0::/kubepods/pod{UID}/3b1f"),
            format!(
                "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID_SYSTEMD}.slice/{scope}"
            ),
            // A container that has made cgroups of its own.
            format!("0::/kubepods/besteffort/pod{UID}/3b1f/init.scope"),
            // kind: the node is a container.
            format!("0::/docker/8d1c/kubepods/besteffort/pod{UID}/3b1f"),
            // Version 1, with a line for each hierarchy.
            format!(
                "12:memory:/kubepods/burstable/pod{UID}/3b1f\n11:cpu,cpuacct:/kubepods/burstable/pod{UID}/3b1f\n\
                 1:name=systemd:/kubepods/burstable/pod{UID}/3b1f\n0::/system.slice/containerd.service\n"
            ),
            // A path with a colon (containerd with systemd, version 1).
            format!(
                "1:name=systemd:/system.slice/containerd.service/kubepods-pod{UID_SYSTEMD}.slice:cri-containerd:3b1f\n\
                     2:cpu:/kubepods/pod{UID}/x"
            ),
        ] {
            assert_eq!(pod_uid(&path).as_deref(), Some(UID), "{path}");
        }
        let digits = "0123456789abcdef0123456789abcdef";
        assert_eq!(
            pod_uid(&format!("0::/kubepods/pod{digits}/x")).as_deref(),
            Some(digits)
        );
    }

    #[test]
    fn other_paths_name_no_pod() {
        let other = "2f8c2ab0-7d3e-4c51-9d0a-5b1f0c6e7a22";
        for path in [
            String::new(),
            "0::/".to_owned(),
            "0::/user.slice/user-1000.slice/session-1.scope".to_owned(),
            "0::/kubepods/podnonsense/x".to_owned(),
            "0::/kubepods/pod../x".to_owned(),
            format!("0::/kubepods/burstable/pod{UID}x/3b1f"),
            format!("pod{UID}"),
            // Cgroups of two different pods name none.
            format!("2:cpu:/kubepods/pod{UID}/x\n3:memory:/kubepods/pod{other}/x"),
        ] {
            assert_eq!(pod_uid(&path), None, "{path}");
        }
    }

    #[test]
    fn the_innermost_pod_of_a_path_counts() {
        let outer = "2f8c2ab0-7d3e-4c51-9d0a-5b1f0c6e7a22";
        let path = format!("0::/kubepods/pod{outer}/x/kubepods/pod{UID}/y");
        assert_eq!(pod_uid(&path).as_deref(), Some(UID));
    }

    #[test]
    fn the_uid_is_read_from_proc() {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir(proc.path().join("17")).unwrap();
        let text = format!("0::/kubepods/pod{UID}/x\n");
        std::fs::write(proc.path().join("17/cgroup"), text).unwrap();
        assert_eq!(pod_uid_in(proc.path(), 17).unwrap().as_deref(), Some(UID));
        assert!(pod_uid_in(proc.path(), 18).is_err());
        assert!(pod_uid_of(std::process::id()).is_ok());
    }
}
