//! The C programs, each built once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The folder of the C programs.
pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cuda")
}

/// Our kernels.
pub(crate) fn ptx() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu-sidecar/kernels/weir.ptx")
}

/// A C program that loads the driver when it runs.
pub(crate) fn built(name: &str) -> &'static Path {
    static BUILT: Mutex<BTreeMap<String, &'static OnceLock<PathBuf>>> = Mutex::new(BTreeMap::new());
    let mut all = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let own: &'static OnceLock<_> = all.entry(name.to_owned()).or_insert_with(|| {
        // One for each program, for as long as the process lives.
        Box::leak(Box::default())
    });
    drop(all);
    own.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        compile(name, &program, &[]);
        program
    })
}

/// A C program that is bound to the driver when it is linked.
pub(crate) fn linked(name: &str, libraries: &Path) -> PathBuf {
    let program = libraries.join(name);
    let option = format!("-L{}", libraries.display());
    compile(name, &program, &[&option, "-l:libcuda.so.1"]);
    program
}

fn compile(name: &str, program: &Path, libraries: &[&str]) {
    let file = format!("{name}.c");
    let own = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/cuda")
        .join(&file);
    let source = if own.exists() {
        own
    } else {
        sources().join(&file)
    };
    // Another run of the tests may have the program open.
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
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", source.display());
    std::fs::rename(&new, program).unwrap();
}
