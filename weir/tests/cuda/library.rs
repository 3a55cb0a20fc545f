//! The library's file: its exported names, and its requirements on the system.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use softgpu_harness::soft_gpu_dir::SoftGpuDir;

/// Returns the output of a binutils program on the library.
fn output_of(program: &str, arguments: &[&str], library: &Path) -> String {
    let output = Command::new(program)
        .args(arguments)
        .arg(library)
        .output()
        .unwrap_or_else(|error| panic!("`{program}`, which comes with gcc: {error}"));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn exactly_the_names_of_the_interface_are_exported() {
    let softgpu = SoftGpuDir::h100();
    let printed = output_of(
        "nm",
        &["-D", "--defined-only"],
        &softgpu.folder().join("libcuda.so.1"),
    );
    let exported: BTreeSet<_> = printed
        .lines()
        .map(|line| line.split_whitespace().next_back().unwrap())
        .filter(|name| name.starts_with("cu"))
        .collect();
    // softgpu imitates a driver of version 13.0.
    let named: BTreeSet<_> = preload_table::ENTRIES
        .iter()
        .filter(|entry| entry.version() <= 13_000)
        .map(preload_table::Entry::symbol)
        .collect();
    assert!(named.len() > 500);
    let missing: Vec<_> = named.difference(&exported).collect();
    let more: Vec<_> = exported.difference(&named).collect();
    assert!(
        missing.is_empty() && more.is_empty(),
        "missing: {missing:?}; more: {more:?}"
    );
}

/// Returns the newest version of glibc that the library requires.
fn glibc(library: &Path) -> (u32, u32) {
    let printed = output_of("readelf", &["--version-info", "--wide"], library);
    let version = |line: &str| {
        // Weak requirements may be missing.
        let (_, rest) = line.split_once("Name: GLIBC_")?;
        let (version, rest) = rest.split_once(' ')?;
        let (major, minor) = version.split_once('.')?;
        let minor = minor.split('.').next()?;
        let is_weak = rest.contains("WEAK");
        (!is_weak).then(|| Some((major.parse().ok()?, minor.parse().ok()?)))?
    };
    printed.lines().filter_map(version).max().unwrap()
}

#[test]
fn loads_on_debian_12() {
    let softgpu = SoftGpuDir::h100();
    for name in ["libcuda.so.1", "libnvidia-ml.so.1", "softgpu-server"] {
        let needed = glibc(&softgpu.folder().join(name));
        writeln!(std::io::stdout(), "{name}: glibc {}.{}", needed.0, needed.1).unwrap();
        assert!(needed <= (2, 36), "{name}: {needed:?}");
    }
}

#[test]
fn has_the_soname_that_programs_load() {
    let softgpu = SoftGpuDir::h100();
    for (name, own) in [
        ("libcuda.so", "libcuda.so.1"),
        ("libcuda.so.1", "libcuda.so.1"),
        ("libnvidia-ml.so.1", "libnvidia-ml.so.1"),
    ] {
        let printed = output_of(
            "readelf",
            &["--dynamic", "--wide"],
            &softgpu.folder().join(name),
        );
        let line = printed.lines().find(|line| line.contains("(SONAME)"));
        assert!(
            line.is_some_and(|line| line.contains(&format!("[{own}]"))),
            "{printed}"
        );
    }
}
