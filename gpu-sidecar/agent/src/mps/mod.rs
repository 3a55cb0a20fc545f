//! MPS: one control daemon for each slot that is shared by it, with a pipe directory of its own.
//!
//! A daemon is started in the foreground as a child, in a process group of its own: it outlives the agent, since the
//! contexts of running programs end with it. An agent that is started anew finds it by its pipe directory and goes on with it.
//! In containers, whose end ends all their processes, `gpu-sidecar mps` runs them apart from the agent (module `program`).
//! A daemon that has ended is started again after 100 ms, and then after twice as long each time, up to 10 s.
//!
//! MPS gives a fault of one client to all: whoever was connected is told in an event. It isolates nobody from anybody; only
//! pods that asked for `isolation: shared` are on such a slot.
//!
//! A process in another PID namespace than the daemon's, with another `/dev/shm`, or under another kernel (Kata, gVisor)
//! cannot be a client.

pub(crate) mod control;
pub(crate) mod daemon;
pub(crate) mod program;

use std::path::{Path, PathBuf};

use annotations::ALL_HUNDREDTHS;
use serde::Serialize;

use crate::state::{PodSettings, Slot, SlotKind};

/// What sets a pod's processes up as clients. The same figures are in the protocol's `Welcome` and in the control API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MpsEnvironment {
    /// `CUDA_MPS_PIPE_DIRECTORY`.
    pub pipe_directory: PathBuf,
    /// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`, in hundredths.
    pub active_thread_hundredths: u32,
    /// `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT` in bytes; `None`: none.
    pub pinned_memory_bytes: Option<u64>,
}

impl MpsEnvironment {
    /// For a pod on a slot; `None`: the slot is not shared by MPS.
    #[must_use]
    pub fn of(slot: &Slot, settings: &PodSettings) -> Option<Self> {
        let pipe_directory = slot.mps_pipe.clone()?;
        // Below compute capability 7.0 there are no percentages.
        let has_percentages = slot.compute_capability.is_none_or(|own| own >= (7, 0));
        Some(Self {
            pipe_directory,
            active_thread_hundredths: if has_percentages {
                settings.sm_hundredths
            } else {
                ALL_HUNDREDTHS
            },
            // A tenth wider than the limit that the preload keeps to the byte: what the context itself takes counts here too.
            pinned_memory_bytes: settings.gpu_memory.map(|limit| {
                let mib = 1_u64 << 20;
                limit
                    .saturating_add(limit / 10)
                    .div_ceil(mib)
                    .saturating_mul(mib)
            }),
        })
    }

    /// As variables. Sizes are whole numbers of M, as MPS takes them; a client of a daemon sees its one device as 0.
    #[must_use]
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let hundredths = u64::from(self.active_thread_hundredths);
        let mut variables = vec![
            (
                "CUDA_MPS_PIPE_DIRECTORY",
                self.pipe_directory.display().to_string(),
            ),
            (
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                crate::config::units::show_decimal(hundredths, 2),
            ),
        ];
        if let Some(bytes) = self.pinned_memory_bytes {
            variables.push((
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                format!("0={}M", bytes >> 20),
            ));
        }
        variables
    }
}

/// The control program, found.
///
/// # Errors
/// It is not there; the text says where it was looked for, and what has it.
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

fn missing(looked: &str) -> String {
    format!(
        "no MPS control program: looked for {looked}; it comes with the driver (nvidia-compute-utils or \
         nvidia-driver-cuda); name it with node.mps-control"
    )
}

/// A socket's path has at most this many bytes.
const SOCKET_PATH_MAX: usize = 107;

/// Why MPS cannot run on a slot; `Ok`: it can.
pub(crate) fn can_run(slot: &Slot) -> Result<(), String> {
    if slot.kind == SlotKind::Exclusive {
        return Err("the slot is exclusive".to_owned());
    }
    if let Some((major, minor)) = slot.compute_capability.filter(|own| *own < (7, 0)) {
        return Err(format!(
            "compute capability {major}.{minor} has no MPS percentages; 7.0 and above has: make the slot exclusive"
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

/// Why one more pod cannot be a client on a slot; `Ok`: it can.
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
    fn a_pods_variables_follow_from_slot_and_settings() {
        let environment = MpsEnvironment::of(&slot(0), &settings()).unwrap();
        // 8 GiB and a tenth, up to whole MiB.
        assert_eq!(
            environment.variables(),
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
        assert_eq!(environment.variables()[1].1, "12.5");
        assert_eq!(environment.variables().len(), 2);
        let mut exclusive = slot(0);
        exclusive.mps_pipe = None;
        assert_eq!(MpsEnvironment::of(&exclusive, &settings()), None);
    }

    #[test]
    fn where_it_cannot_run_is_said_why() {
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
    fn the_client_limit_is_said() {
        assert_eq!(has_room(&slot(0), 47), Ok(()));
        assert_eq!(
            has_room(&slot(0), 48),
            Err("48 MPS clients are connected, and 48 are allowed".to_owned())
        );
    }

    #[test]
    fn a_program_that_is_missing_is_said_where() {
        let why = find_program(Path::new("/nowhere/nvidia-cuda-mps-control")).unwrap_err();
        assert!(
            why.contains("looked for /nowhere/nvidia-cuda-mps-control; it comes with"),
            "{why}"
        );
        let why = find_program(Path::new("no-such-program-here")).unwrap_err();
        assert!(why.contains("no-such-program-here in PATH ("), "{why}");
        assert!(find_program(Path::new("sh")).is_ok());
        // A file that cannot be executed is none.
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(find_program(file.path()).is_err());
    }
}
