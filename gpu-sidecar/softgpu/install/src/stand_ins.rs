//! Location of the libraries and programs that stand in for NVIDIA's, relative to the running executable.
//!
//! | folder, relative to the executable | contents |
//! |---|---|
//! | `softgpu/` | a release: all four under their real names |
//! | its own folder, `deps/` | cargo's output: `libsoftgpu_cuda.so`, `libsoftgpu_nvml.so`; the newest of each is used |
//! | `../lib/weir/` | libraries of an installed program, under cargo's names |
//! | cargo's output folder | for a copy made by `cargo install --path weir`; not in profile `dist` |
//!
//! Without a release's folder, the programs are the executable itself if it begins with [`crate::run_as`], otherwise
//! those in cargo's output.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use softgpu_wire::softgpu_dir;

/// Name under which programs load the driver's library.
pub const CUDA: &str = "libcuda.so.1";
/// Name that some programs try first.
pub const CUDA_SHORT: &str = "libcuda.so";
/// Name under which programs load NVML.
pub const NVML: &str = "libnvidia-ml.so.1";

/// Folder of a release, beside its executable.
const RELEASE: &str = "softgpu";
const CUDA_BUILT: &str = "libsoftgpu_cuda.so";
const NVML_BUILT: &str = "libsoftgpu_nvml.so";

/// Failure to find a stand-in.
#[derive(Debug, thiserror::Error)]
pub enum StandInsError {
    /// The path of this executable is unknown.
    #[error("cannot determine the path of the running executable: {0}")]
    Own(std::io::Error),
    /// A file is in none of the searched places.
    #[error("{name} not found: searched {}; `cargo build --release -p weir` in Weir's sources builds it", list(.searched))]
    Missing {
        /// Name of the missing file.
        name: &'static str,
        /// Paths that were searched.
        searched: Vec<PathBuf>,
    },
}

fn list(paths: &[PathBuf]) -> String {
    let shown: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    shown.join(", ")
}

/// Cargo's output folder; empty in a distributed executable.
const BUILT_IN: &str = env!("WEIR_BUILT_IN");

/// Returns the folders that may contain a program's libraries, relative to the program's own.
fn folders_beside(folder: &Path, built: &Path) -> Vec<PathBuf> {
    let mut folders = vec![folder.to_path_buf(), folder.join("deps")];
    folders.extend(folder.parent().map(|above| above.join("lib/weir")));
    if built != Path::new("") {
        folders.extend([built.to_path_buf(), built.join("deps")]);
    }
    folders
}

/// Returns the path of a library of this workspace: beside the running executable, where it was installed, or in
/// cargo's output. Of several, returns the newest in the first such place.
///
/// # Errors
/// Fails when it is missing; the error lists the searched paths.
pub fn library(name: &'static str) -> Result<PathBuf, StandInsError> {
    let own = std::env::current_exe().map_err(StandInsError::Own)?;
    let folder = own.parent().unwrap_or_else(|| Path::new("/"));
    library_beside(folder, Path::new(BUILT_IN), name, Vec::new(), name)
}

/// Like [`library`], but searches the paths `first` before.
fn library_beside(
    folder: &Path,
    built_in: &Path,
    built: &str,
    first: Vec<PathBuf>,
    name: &'static str,
) -> Result<PathBuf, StandInsError> {
    let mut searched = first;
    let mut all = folders_beside(folder, built_in)
        .into_iter()
        .map(|own| own.join(built));
    // Cargo puts some libraries in the folder and some in `deps`: the newest is used.
    searched.extend(all.by_ref().take(2));
    match newest(name, searched) {
        Err(StandInsError::Missing { searched, .. }) => {
            let rest: Vec<PathBuf> = all.collect();
            let searched = [searched, rest.clone()].concat();
            // Installed libraries precede built ones.
            let (installed, built) = rest.split_at(1.min(rest.len()));
            newest(name, installed.to_vec())
                .or_else(|_| newest(name, built.to_vec()))
                .map_err(|_| StandInsError::Missing { name, searched })
        }
        found => found,
    }
}

/// Paths of the files to install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandIns {
    /// Path of the library to install as `libcuda.so.1`.
    pub cuda: PathBuf,
    /// Path of the library to install as `libnvidia-ml.so.1`.
    pub nvml: PathBuf,
    /// Path of the program to install as `nvidia-cuda-mps-control`.
    pub mps_control: PathBuf,
    /// Path of the program to install as `softgpu-server`.
    pub server: PathBuf,
}

impl StandIns {
    /// Finds the stand-ins of the running executable.
    ///
    /// # Errors
    /// Fails when one is missing; the error lists the searched paths.
    pub fn find() -> Result<Self, StandInsError> {
        let own = std::env::current_exe().map_err(StandInsError::Own)?;
        let program = crate::is_all_programs().then(|| own.clone());
        let folder = own.parent().unwrap_or_else(|| Path::new("/"));
        Self::beside(folder, Path::new(BUILT_IN), program)
    }

    /// Finds the libraries of the running executable, with `program`, which begins with [`crate::run_as`], as both
    /// programs: for tests, whose own executables do not.
    ///
    /// # Errors
    /// Fails when a library is missing; the error lists the searched paths.
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
                server: find(softgpu_dir::SERVER)?,
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
            // Test executables are in `deps`, programs in the folder above.
            let above = folder.parent().unwrap_or(folder);
            newest(name, vec![folder.join(name), above.join(name)])
        };
        Ok(Self {
            cuda,
            nvml,
            mps_control: built(softgpu_mps::CONTROL)?,
            server: built(softgpu_dir::SERVER)?,
        })
    }
}

/// Returns the newest of the existing files.
fn newest(name: &'static str, searched: Vec<PathBuf>) -> Result<PathBuf, StandInsError> {
    let age = |path: &PathBuf| {
        let about = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some(about.modified().unwrap_or(SystemTime::UNIX_EPOCH))
    };
    let mut found: Option<(SystemTime, &PathBuf)> = None;
    for path in &searched {
        if let Some(age) = age(path)
            // Of two files with the same time, the first.
            && found.is_none_or(|(newest, _)| age > newest)
        {
            found = Some((age, path));
        }
    }
    match found {
        Some((_, path)) => Ok(path.clone()),
        None => Err(StandInsError::Missing { name, searched }),
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
            error.starts_with("libcuda.so.1 not found: searched "),
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
        let server = file(&folder.join(RELEASE).join(softgpu_dir::SERVER), 50);
        let found = find().unwrap();
        assert_eq!((found.cuda, found.server), (cuda, server));
    }

    #[test]
    fn a_copied_program_finds_cargos_output() {
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
        // Installed libraries come first, however old; those beside the program come before them.
        let installed = file(&place.path().join("lib/weir").join(CUDA_BUILT), 90);
        assert_eq!(find().unwrap(), installed);
        let beside = file(&bin.join(CUDA_BUILT), 99);
        assert_eq!(find().unwrap(), beside);
    }

    #[test]
    fn tests_use_the_programs_above_their_own_folder() {
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
        let server = file(&place.path().join(softgpu_dir::SERVER), 1);
        assert_eq!(
            StandIns::beside(&deps, Path::new(""), None).unwrap().server,
            server
        );
    }
}
