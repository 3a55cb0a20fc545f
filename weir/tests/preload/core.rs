//! The core's file: its exports, and its requirements on the system.

use std::collections::BTreeSet;
use std::process::Command;

use softgpu_harness::node::library;

/// Oldest supported glibc, as in `preload_floor::FLOOR`.
const FLOOR: (u32, u32) = (2, 28);

/// Returns the output of a binutils program on the library.
fn output_of(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .arg(library("libweir_preload_core.so"));
    let output = command.output();
    let output =
        output.unwrap_or_else(|error| panic!("`{program}`, which comes with gcc: {error}"));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn exports_one_function() {
    let printed = output_of("nm", &["-D", "--defined-only"]);
    let names: Vec<_> = printed
        .lines()
        .filter_map(|line| line.split_whitespace().next_back())
        .collect();
    assert_eq!(names, ["weir_preload_core"]);
}

#[test]
fn loads_with_the_oldest_supported_c_library() {
    // Only glibc's versions count; other libraries have versions of their own.
    let printed = output_of("readelf", &["--version-info", "--wide"]);
    let mut newest = (0, 0);
    for version in printed.split("Name: GLIBC_").skip(1) {
        let version = version.split_whitespace().next().unwrap();
        let mut numbers = version.split('.').map(|number| number.parse().unwrap());
        newest = newest.max((numbers.next().unwrap(), numbers.next().unwrap()));
    }
    assert!(newest > (0, 0));
    assert!(newest <= FLOOR, "{newest:?}\n{printed}");
    // A function without a version is one that the list in `floor` lacks.
    for line in output_of("nm", &["-D", "--undefined-only"]).lines() {
        let mut words = line.split_whitespace();
        let (kind, name) = (words.next().unwrap(), words.next().unwrap());
        assert!(kind != "U" || name.contains('@'), "{name}");
    }
}

#[test]
fn needs_the_c_library_and_no_driver() {
    let printed = output_of("readelf", &["--dynamic", "--wide"]);
    let needed: BTreeSet<_> = printed
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0))
        .collect();
    assert!(needed.contains("libc.so.6"), "{needed:?}");
    for name in &needed {
        let is_system = ["libc.", "libdl.", "libpthread.", "libgcc_s.", "ld-linux"]
            .iter()
            .any(|start| name.starts_with(start));
        assert!(is_system, "{name}");
    }
    // It must not call the driver's functions directly either.
    let printed = output_of("nm", &["-D", "--undefined-only"]);
    for line in printed.lines() {
        let name = line.split_whitespace().next_back().unwrap();
        assert!(
            !name.starts_with("cu") && !name.starts_with("nvml"),
            "{name}"
        );
    }
}
