//! MPS: one control daemon with its own pipe directory for each shared slot.
//!
//! A daemon is started in the foreground as a child, in a process group of its own: it outlives the agent, since the contexts
//! of running programs end with it. A restarted agent finds it by its pipe directory and adopts it. In containers, whose end
//! ends all their processes, `gpu-sidecar mps` runs the daemons apart from the agent (module `program`). A daemon that has
//! ended is restarted after 100 ms, and after twice as long each further time, up to 10 s.
//!
//! MPS propagates a fault of one client to all clients of the server: an event lists the affected ones. It provides no
//! isolation; only pods with `isolation: shared` are placed on such a slot.
//!
//! A process in another PID namespace than the daemon's, with another `/dev/shm`, or under another kernel (Kata, gVisor) cannot
//! be a client.

pub(crate) mod control;
pub(crate) mod daemon;
pub(crate) mod program;

use std::path::{Path, PathBuf};

pub use agent_core::MpsEnvironment;

use crate::state::{Slot, SlotKind};

/// Returns the environment variables. Sizes are whole mebibytes (`M`), as MPS requires; a client of a daemon sees its one
/// device as 0.
#[must_use]
pub(crate) fn variables(environment: &MpsEnvironment) -> Vec<(&'static str, String)> {
    let hundredths = u64::from(environment.active_thread_hundredths);
    let mut variables = vec![
        (
            "CUDA_MPS_PIPE_DIRECTORY",
            environment.pipe_directory.display().to_string(),
        ),
        (
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
            crate::config::units::show_decimal(hundredths, 2),
        ),
    ];
    if let Some(bytes) = environment.pinned_memory_bytes {
        variables.push((
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            format!("0={}M", bytes >> 20),
        ));
    }
    variables
}

/// Finds the MPS control program: at an absolute path, or by name in `PATH`.
///
/// # Errors
/// Returns a text with the searched places and the packages that contain the program.
pub(crate) fn find_program(program: &Path) -> Result<PathBuf, String> {
    use rustix::fs::{Access, access};
    let is_program = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    if program.is_absolute() {
        return if is_program(program) {
            Ok(program.to_path_buf())
        } else {
            Err(missing(&program.display().to_string()))
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(program));
    found
        .into_iter()
        .find(|path| is_program(path))
        .ok_or_else(|| {
            missing(&format!(
                "{} in PATH ({})",
                program.display(),
                path.to_string_lossy()
            ))
        })
}

fn missing(searched: &str) -> String {
    format!(
        "no MPS control program: searched {searched}; it comes with the driver (nvidia-compute-utils or \
         nvidia-driver-cuda); set node.mps-control to its path"
    )
}

/// Maximum length of a Unix socket's path, in bytes.
const SOCKET_PATH_MAX: usize = 107;

/// Checks whether MPS can run on a slot.
///
/// # Errors
/// Returns the reason why it cannot.
pub(crate) fn can_run(slot: &Slot) -> Result<(), String> {
    if slot.kind == SlotKind::Exclusive {
        return Err("the slot is exclusive".to_owned());
    }
    if let Some((major, minor)) = slot.compute_capability.filter(|own| *own < (7, 0)) {
        return Err(format!(
            "compute capability {major}.{minor} has no MPS percentages (7.0 or above required): configure the slot as exclusive"
        ));
    }
    let pipe = slot.mps_pipe.as_deref().unwrap_or_else(|| Path::new(""));
    let length = pipe.as_os_str().len() + "/control".len();
    if length > SOCKET_PATH_MAX {
        return Err(format!(
            "{} is too long for a socket: {length} bytes with /control, at most {SOCKET_PATH_MAX} are allowed; \
             shorten node.run-directory",
            pipe.display()
        ));
    }
    Ok(())
}

/// Checks whether a slot has room for one more MPS client.
///
/// # Errors
/// Returns the reason why it has not.
pub(crate) fn has_room(slot: &Slot, clients: usize) -> Result<(), String> {
    let limit = usize::try_from(slot.client_limit).unwrap_or(usize::MAX);
    if clients < limit {
        Ok(())
    } else {
        Err(format!(
            "{clients} MPS clients are connected, and {limit} are allowed"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{settings, slot};

    #[test]
    fn the_variables_follow_from_slot_and_settings() {
        let environment = MpsEnvironment::of(&slot(0), &settings()).unwrap();
        // 8 GiB and a tenth, rounded up to whole MiB.
        assert_eq!(
            variables(&environment),
            [
                ("CUDA_MPS_PIPE_DIRECTORY", "/run/weir/mps/0/pipe".to_owned()),
                ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25".to_owned()),
                ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=9012M".to_owned()),
            ]
        );
        let mut free = settings();
        free.gpu_memory = None;
        free.sm_hundredths = 1_250;
        let environment = MpsEnvironment::of(&slot(0), &free).unwrap();
        assert_eq!(variables(&environment)[1].1, "12.5");
        assert_eq!(variables(&environment).len(), 2);
        let mut exclusive = slot(0);
        exclusive.mps_pipe = None;
        assert_eq!(MpsEnvironment::of(&exclusive, &settings()), None);
    }

    #[test]
    fn can_run_reports_why_mps_cannot_run() {
        let mut old = slot(0);
        old.compute_capability = Some((6, 1));
        let why = can_run(&old).unwrap_err();
        assert!(
            why.starts_with("compute capability 6.1 has no MPS percentages"),
            "{why}"
        );
        let mut long = slot(0);
        long.mps_pipe = Some(PathBuf::from(format!("/{}/pipe", "x".repeat(100))));
        let why = can_run(&long).unwrap_err();
        assert!(
            why.contains("114 bytes with /control, at most 107"),
            "{why}"
        );
        let mut exclusive = slot(0);
        exclusive.kind = SlotKind::Exclusive;
        assert_eq!(can_run(&exclusive), Err("the slot is exclusive".to_owned()));
        assert_eq!(can_run(&slot(0)), Ok(()));
    }

    #[test]
    fn has_room_reports_the_client_limit() {
        assert_eq!(has_room(&slot(0), 47), Ok(()));
        assert_eq!(
            has_room(&slot(0), 48),
            Err("48 MPS clients are connected, and 48 are allowed".to_owned())
        );
    }

    #[test]
    fn a_missing_program_is_reported_with_the_searched_places() {
        let why = find_program(Path::new("/nowhere/nvidia-cuda-mps-control")).unwrap_err();
        assert!(
            why.contains("searched /nowhere/nvidia-cuda-mps-control; it comes with"),
            "{why}"
        );
        let why = find_program(Path::new("no-such-program-here")).unwrap_err();
        assert!(why.contains("no-such-program-here in PATH ("), "{why}");
        assert!(find_program(Path::new("sh")).is_ok());
        // A file without execute permission does not count.
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(find_program(file.path()).is_err());
    }
}
