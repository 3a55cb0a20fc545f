//! A complete software GPU: installation of its stand-ins under NVIDIA's names, queries to its server, and drawings of
//! its ledger.
//!
//! | module | contents |
//! |---|---|
//! | [`stand_ins`] | paths of the libraries and programs that stand in for NVIDIA's |
//! | [`install`](mod@install) | installation in a folder, with a configuration |
//! | [`observer`] | a connection to a folder's server for queries and control |
//! | [`names`] | display names of GPUs, slices and links |
//! | [`ledger`] | the record of resources held over time, read from the folder |
//! | [`summary`] | the same in figures |
//! | [`bands`], [`svg`], [`text`] | the same as drawings |
//!
//! A program that begins with [`run_as`] contains all of softgpu's programs, selected by the name it is called by.
#![forbid(unsafe_code)]

pub mod bands;
pub mod install;
pub mod ledger;
pub mod names;
pub mod observer;
pub mod stand_ins;
pub mod summary;
pub mod svg;
pub mod text;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use softgpu_wire::softgpu_dir;

pub use crate::install::{InstallError, install};
pub use crate::stand_ins::{StandIns, StandInsError};

/// Set once the program has called [`run_as`].
static IS_ALL_PROGRAMS: AtomicBool = AtomicBool::new(false);

/// Runs softgpu's program of this name, with or without a path: `softgpu-server`, `nvidia-cuda-mps-control` or
/// `nvidia-cuda-mps-server`. Returns `None` for other names. `arguments` excludes the name.
///
/// Must be called first in a program. [`StandIns::find`] then installs the running program under these names.
pub fn run_as(name: &OsStr, arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    IS_ALL_PROGRAMS.store(true, Ordering::Relaxed);
    let own = Path::new(name).file_name()?;
    if own == OsStr::new(softgpu_dir::SERVER) {
        return Some(softgpu_server::main(arguments));
    }
    let is_mps = [softgpu_mps::CONTROL, softgpu_mps::SERVER].map(OsStr::new);
    if is_mps.contains(&own) {
        let all = std::iter::once(name.to_owned()).chain(arguments);
        return Some(softgpu_mps::main(all.collect()));
    }
    None
}

fn is_all_programs() -> bool {
    IS_ALL_PROGRAMS.load(Ordering::Relaxed)
}

/// The environment names no folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no folder: the environment has neither WEIR_SOFTGPU nor an absolute XDG_CACHE_HOME or HOME"
)]
pub struct NoFolder;

/// Returns the default folder: that of `WEIR_SOFTGPU`, else `weir/softgpu` in `XDG_CACHE_HOME`, else
/// `.cache/weir/softgpu` in `HOME`.
///
/// # Errors
/// Fails when none of these variables is set.
pub fn default_folder() -> Result<PathBuf, NoFolder> {
    folder_of(|name| std::env::var_os(name))
}

fn folder_of(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, NoFolder> {
    if let Some(folder) = variable(softgpu_dir::VARIABLE).filter(|folder| !folder.is_empty()) {
        return Ok(PathBuf::from(folder));
    }
    // The XDG specification demands that relative paths be ignored.
    let absolute = |name| {
        let folder = variable(name).map(PathBuf::from);
        folder.filter(|folder| folder.is_absolute())
    };
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("weir/softgpu"))
        .ok_or(NoFolder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_names_the_folder() {
        let of = |set: &[(&str, &str)]| {
            folder_of(|name| {
                let found = set.iter().find(|(own, _)| *own == name);
                found.map(|(_, value)| OsString::from(value))
            })
        };
        let all = [
            ("WEIR_SOFTGPU", "own"),
            ("XDG_CACHE_HOME", "/cache"),
            ("HOME", "/home/me"),
        ];
        assert_eq!(of(&all), Ok(PathBuf::from("own")));
        assert_eq!(of(&all[1..]), Ok(PathBuf::from("/cache/weir/softgpu")));
        assert_eq!(
            of(&all[2..]),
            Ok(PathBuf::from("/home/me/.cache/weir/softgpu"))
        );
        assert_eq!(
            of(&[("WEIR_SOFTGPU", ""), ("XDG_CACHE_HOME", "cache")]),
            Err(NoFolder)
        );
    }

    #[test]
    fn other_names_are_not_programs_of_softgpu() {
        for name in ["weir", "/usr/bin/weir", "softgpu", ""] {
            assert!(run_as(OsStr::new(name), std::iter::empty()).is_none());
        }
    }
}
