//! Where the libraries and programs are that stand in for NVIDIA's: beside the running executable.
//!
//! | where, seen from the executable | what is there |
//! |---|---|
//! | `softgpu/` | a release: all four under their real names |
//! | `deps/`, its own folder | what cargo has built: `libsoftgpu_cuda.so`, `libsoftgpu_nvml.so`; the newest of each is taken |
//!
//! | `../lib/weir/` | an installed program's libraries, as cargo has built them |
//! | where cargo has built it | for a program that `cargo install --path weir` has copied elsewhere; not in profile `dist` |
//!
//! Without a release's folder the programs are the executable itself, if it begins with [`crate::run_as`], else those that
//! cargo has built.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use softgpu_wire::place;

/// The driver's library, as programs ask for it.
pub const CUDA: &str = "libcuda.so.1";
/// The same, as some programs ask for it first.
pub const CUDA_SHORT: &str = "libcuda.so";
/// NVML, as programs ask for it.
pub const NVML: &str = "libnvidia-ml.so.1";

/// The folder of a release, beside its executable.
const RELEASE: &str = "softgpu";
const CUDA_BUILT: &str = "libsoftgpu_cuda.so";
const NVML_BUILT: &str = "libsoftgpu_nvml.so";

/// A stand-in is not where it should be.
#[derive(Debug, thiserror::Error)]
pub enum StandInsError {
    /// This executable does not know where it lies.
    #[error("cannot find out where the running executable lies: {0}")]
    Own(std::io::Error),
    /// It is in none of these folders.
    #[error("{name} not found: looked for {}; `cargo build --release -p weir` in Weir's sources builds it", list(.looked))]
    Missing {
        /// Which.
        name: &'static str,
        /// Where it was looked for.
        looked: Vec<PathBuf>,
    },
}

fn list(paths: &[PathBuf]) -> String {
    let shown: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    shown.join(", ")
}

/// Where cargo has put what it has built; empty in what is shipped.
const BUILT_IN: &str = env!("WEIR_BUILT_IN");

/// Returns the folders in which a program's own libraries may be, seen from the folder that it lies in.
fn folders_beside(folder: &Path, built: &Path) -> Vec<PathBuf> {
    let mut folders = vec![folder.to_path_buf(), folder.join("deps")];
    folders.extend(folder.parent().map(|above| above.join("lib/weir")));
    if built != Path::new("") {
        folders.extend([built.to_path_buf(), built.join("deps")]);
    }
    folders
}

/// Returns where a library of this workspace is: beside the running executable, where it was installed, or where cargo has built it; of
/// several the newest of the first such place.
///
/// # Errors
/// It is not there; the error says where it was looked for.
pub fn library(name: &'static str) -> Result<PathBuf, StandInsError> {
    let own = std::env::current_exe().map_err(StandInsError::Own)?;
    let folder = own.parent().unwrap_or_else(|| Path::new("/"));
    library_beside(folder, Path::new(BUILT_IN), name, Vec::new(), name)
}

/// The same; `first`: where else it is looked for before.
fn library_beside(
    folder: &Path,
    built_in: &Path,
    built: &str,
    first: Vec<PathBuf>,
    name: &'static str,
) -> Result<PathBuf, StandInsError> {
    let mut looked = first;
    let mut all = folders_beside(folder, built_in)
        .into_iter()
        .map(|own| own.join(built));
    // Cargo leaves some in the folder and some in `deps`: the newest counts.
    looked.extend(all.by_ref().take(2));
    match newest(name, looked) {
        Err(StandInsError::Missing { looked, .. }) => {
            let rest: Vec<PathBuf> = all.collect();
            let looked = [looked, rest.clone()].concat();
            // What was installed before what was built.
            let (installed, built) = rest.split_at(1.min(rest.len()));
            newest(name, installed.to_vec())
                .or_else(|_| newest(name, built.to_vec()))
                .map_err(|_| StandInsError::Missing { name, looked })
        }
        found => found,
    }
}

/// The files to be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandIns {
    /// For `libcuda.so.1`.
    pub cuda: PathBuf,
    /// For `libnvidia-ml.so.1`.
    pub nvml: PathBuf,
    /// For `nvidia-cuda-mps-control`.
    pub mps_control: PathBuf,
    /// For `softgpu-server`.
    pub server: PathBuf,
}

impl StandIns {
    /// Those beside the running executable.
    ///
    /// # Errors
    /// One is not there; the error says where it was looked for.
    pub fn find() -> Result<Self, StandInsError> {
        let own = std::env::current_exe().map_err(StandInsError::Own)?;
        let program = crate::is_all_programs().then(|| own.clone());
        let folder = own.parent().unwrap_or_else(|| Path::new("/"));
        Self::beside(folder, Path::new(BUILT_IN), program)
    }

    /// The libraries beside the running executable, and for both programs this one, which begins with [`crate::run_as`]: for
    /// tests, whose own executables do not.
    ///
    /// # Errors
    /// A library is not there; the error says where it was looked for.
    pub fn with_program(program: &Path) -> Result<Self, StandInsError> {
        let own = std::env::current_exe().map_err(StandInsError::Own)?;
        let folder = own.parent().unwrap_or_else(|| Path::new("/"));
        Self::beside(folder, Path::new(BUILT_IN), Some(program.to_path_buf()))
    }

    fn beside(
        folder: &Path,
        built_in: &Path,
        program: Option<PathBuf>,
    ) -> Result<Self, StandInsError> {
        let release = folder.join(RELEASE);
        if release.join(CUDA).is_file() {
            let find = |name| newest(name, vec![release.join(name)]);
            return Ok(Self {
                cuda: find(CUDA)?,
                nvml: find(NVML)?,
                mps_control: find(softgpu_mps::CONTROL)?,
                server: find(place::SERVER)?,
            });
        }
        let library =
            |real, built| library_beside(folder, built_in, built, vec![release.join(real)], real);
        let (cuda, nvml) = (library(CUDA, CUDA_BUILT)?, library(NVML, NVML_BUILT)?);
        if let Some(program) = program {
            return Ok(Self {
                cuda,
                nvml,
                mps_control: program.clone(),
                server: program,
            });
        }
        let built = |name: &'static str| {
            // Test executables lie in `deps`, programs in the folder above it.
            let above = folder.parent().unwrap_or(folder);
            newest(name, vec![folder.join(name), above.join(name)])
        };
        Ok(Self {
            cuda,
            nvml,
            mps_control: built(softgpu_mps::CONTROL)?,
            server: built(place::SERVER)?,
        })
    }
}

/// The newest of the files that are there.
fn newest(name: &'static str, looked: Vec<PathBuf>) -> Result<PathBuf, StandInsError> {
    let age = |path: &PathBuf| {
        let about = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some(about.modified().unwrap_or(SystemTime::UNIX_EPOCH))
    };
    let mut found: Option<(SystemTime, &PathBuf)> = None;
    for path in &looked {
        if let Some(age) = age(path)
            // Of two that are of the same age, the first.
            && found.is_none_or(|(newest, _)| age > newest)
        {
            found = Some((age, path));
        }
    }
    match found {
        Some((_, path)) => Ok(path.clone()),
        None => Err(StandInsError::Missing { name, looked }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn file(path: &Path, age: u64) -> PathBuf {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = std::fs::File::create(path).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - age);
        file.set_modified(time).unwrap();
        path.to_path_buf()
    }

    #[test]
    fn a_release_comes_first_then_the_newest_build() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        let program = folder.join("weir");
        let find = || StandIns::beside(folder, Path::new(""), Some(program.clone()));

        let error = find().unwrap_err().to_string();
        assert!(
            error.starts_with("libcuda.so.1 not found: looked for "),
            "{error}"
        );
        assert!(error.contains("deps/libsoftgpu_cuda.so"), "{error}");
        assert!(
            error.ends_with("`cargo build --release -p weir` in Weir's sources builds it"),
            "{error}"
        );

        let old = file(&folder.join(CUDA_BUILT), 10);
        let nvml = file(&folder.join("deps").join(NVML_BUILT), 10);
        let found = find().unwrap();
        assert_eq!((&found.cuda, &found.nvml), (&old, &nvml));
        assert_eq!((&found.server, &found.mps_control), (&program, &program));
        let new = file(&folder.join("deps").join(CUDA_BUILT), 5);
        assert_eq!(find().unwrap().cuda, new);

        let cuda = file(&folder.join(RELEASE).join(CUDA), 50);
        let error = find().unwrap_err().to_string();
        assert!(error.contains("softgpu/libnvidia-ml.so.1"), "{error}");
        file(&folder.join(RELEASE).join(NVML), 50);
        file(&folder.join(RELEASE).join(softgpu_mps::CONTROL), 50);
        let server = file(&folder.join(RELEASE).join(place::SERVER), 50);
        let found = find().unwrap();
        assert_eq!((found.cuda, found.server), (cuda, server));
    }

    #[test]
    fn a_program_that_was_copied_elsewhere_finds_what_cargo_has_built() {
        let place = tempfile::tempdir().unwrap();
        let (bin, target) = (
            place.path().join("bin"),
            place.path().join("target/release"),
        );
        std::fs::create_dir(&bin).unwrap();
        let find = || library_beside(&bin, &target, CUDA_BUILT, Vec::new(), CUDA);
        let error = find().unwrap_err().to_string();
        assert!(
            error.contains("target/release/deps/libsoftgpu_cuda.so"),
            "{error}"
        );
        let built = file(&target.join("deps").join(CUDA_BUILT), 1);
        assert_eq!(find().unwrap(), built);
        // What was installed comes before, however old it is; what lies beside the program before that.
        let installed = file(&place.path().join("lib/weir").join(CUDA_BUILT), 90);
        assert_eq!(find().unwrap(), installed);
        let beside = file(&bin.join(CUDA_BUILT), 99);
        assert_eq!(find().unwrap(), beside);
    }

    #[test]
    fn tests_take_the_programs_above_their_own_folder() {
        let place = tempfile::tempdir().unwrap();
        let deps = place.path().join("deps");
        file(&deps.join(CUDA_BUILT), 1);
        file(&deps.join(NVML_BUILT), 1);
        let error = StandIns::beside(&deps, Path::new(""), None)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("nvidia-cuda-mps-control not found"),
            "{error}"
        );
        file(&place.path().join(softgpu_mps::CONTROL), 1);
        let server = file(&place.path().join(place::SERVER), 1);
        assert_eq!(
            StandIns::beside(&deps, Path::new(""), None).unwrap().server,
            server
        );
    }
}
