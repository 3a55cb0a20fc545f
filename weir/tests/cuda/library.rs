//! The library itself: which names it exports, and what it needs of the system.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use crate::place::Place;

/// What a program of binutils prints.
fn says(program: &str, arguments: &[&str], library: &Path) -> String {
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
    let place = Place::h100();
    let said = says(
        "nm",
        &["-D", "--defined-only"],
        &place.folder().join("libcuda.so.1"),
    );
    let exported: BTreeSet<_> = said
        .lines()
        .map(|line| line.split_whitespace().next_back().unwrap())
        .filter(|name| name.starts_with("cu"))
        .collect();
    let symbols = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../gpu-sidecar/softgpu/cuda/src/symbols.txt"
    );
    let symbols = std::fs::read_to_string(symbols).unwrap();
    let named: BTreeSet<_> = symbols
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split_whitespace().next_back().unwrap())
        .collect();
    assert!(named.len() > 500);
    let missing: Vec<_> = named.difference(&exported).collect();
    let more: Vec<_> = exported.difference(&named).collect();
    assert!(
        missing.is_empty() && more.is_empty(),
        "missing: {missing:?}; more: {more:?}"
    );
}

/// The highest version of the system's library without which it is not loaded.
fn glibc(library: &Path) -> (u32, u32) {
    let said = says("readelf", &["--version-info", "--wide"], library);
    let version = |line: &str| {
        // What is needed weakly may be missing.
        let (_, rest) = line.split_once("Name: GLIBC_")?;
        let (version, rest) = rest.split_once(' ')?;
        let (major, minor) = version.split_once('.')?;
        let minor = minor.split('.').next()?;
        let is_weak = rest.contains("WEAK");
        (!is_weak).then(|| Some((major.parse().ok()?, minor.parse().ok()?)))?
    };
    said.lines().filter_map(version).max().unwrap()
}

#[test]
fn it_loads_on_debian_12() {
    let place = Place::h100();
    for name in ["libcuda.so.1", "libnvidia-ml.so.1", "softgpu-server"] {
        let needed = glibc(&place.folder().join(name));
        writeln!(std::io::stdout(), "{name}: glibc {}.{}", needed.0, needed.1).unwrap();
        assert!(needed <= (2, 36), "{name}: {needed:?}");
    }
}

#[test]
fn it_is_known_by_the_name_that_programs_ask_for() {
    let place = Place::h100();
    for (name, own) in [
        ("libcuda.so", "libcuda.so.1"),
        ("libcuda.so.1", "libcuda.so.1"),
        ("libnvidia-ml.so.1", "libnvidia-ml.so.1"),
    ] {
        let said = says(
            "readelf",
            &["--dynamic", "--wide"],
            &place.folder().join(name),
        );
        let line = said.lines().find(|line| line.contains("(SONAME)"));
        assert!(
            line.is_some_and(|line| line.contains(&format!("[{own}]"))),
            "{said}"
        );
    }
}
