//! Builds the C programs, each once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Returns the folder of the C programs.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda")
}

/// Returns the path of Weir's kernels.
pub fn ptx() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../gpu-sidecar/kernels/weir.ptx")
}

/// Returns the path of a C program that loads the driver at run time, built on first use.
pub fn built(name: &str) -> &'static Path {
    static BUILT: Mutex<BTreeMap<String, &'static OnceLock<PathBuf>>> = Mutex::new(BTreeMap::new());
    let mut all = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let own: &'static OnceLock<_> = all.entry(name.to_owned()).or_insert_with(|| {
        // Leaked on purpose: one lock per program for the life of the process.
        Box::leak(Box::default())
    });
    drop(all);
    own.get_or_init(|| {
        let folder = crate::build_folder().join("c-programs");
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join(name);
        compile(name, &program, &[]);
        program
    })
}

/// Builds a C program that is linked to the driver in `libraries`, and returns its path.
pub fn linked(name: &str, libraries: &Path) -> PathBuf {
    let program = libraries.join(name);
    let option = format!("-L{}", libraries.display());
    compile(name, &program, &[&option, "-l:libcuda.so.1"]);
    program
}

fn compile(name: &str, program: &Path, libraries: &[&str]) {
    let file = format!("{name}.c");
    let own = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("programs")
        .join(&file);
    let source = if own.exists() {
        own
    } else {
        sources().join(&file)
    };
    // A new file, since another run of the tests may have the program open.
    let new = program.with_extension(std::process::id().to_string());
    let output = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"])
        .arg("-I")
        .arg(sources())
        .arg(&source)
        .arg("-o")
        .arg(&new)
        .args(libraries)
        .args(["-ldl", "-lpthread"])
        .output()
        .expect("the C programs are built with `cc`: install gcc");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {printed}", source.display());
    std::fs::rename(&new, program).unwrap();
}
