//! The core's file itself: what it exports, and what it needs of the system.

use std::collections::BTreeSet;
use std::process::Command;

use crate::node::library;

/// As `preload_floor::FLOOR`.
const FLOOR: (u32, u32) = (2, 28);

/// What a program of binutils prints of the library.
fn says(program: &str, arguments: &[&str]) -> String {
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
fn one_function_is_exported() {
    let said = says("nm", &["-D", "--defined-only"]);
    let names: Vec<_> = said
        .lines()
        .filter_map(|line| line.split_whitespace().next_back())
        .collect();
    assert_eq!(names, ["weir_preload_core"]);
}

#[test]
fn it_loads_with_the_oldest_c_library_that_is_promised() {
    // What is needed of other files than the C library's has versions of its own.
    let said = says("readelf", &["--version-info", "--wide"]);
    let mut newest = (0, 0);
    for version in said.split("Name: GLIBC_").skip(1) {
        let version = version.split_whitespace().next().unwrap();
        let mut numbers = version.split('.').map(|number| number.parse().unwrap());
        newest = newest.max((numbers.next().unwrap(), numbers.next().unwrap()));
    }
    assert!(newest > (0, 0));
    assert!(newest <= FLOOR, "{newest:?}\n{said}");
    // A function without a version is one that the list in `floor` lacks.
    for line in says("nm", &["-D", "--undefined-only"]).lines() {
        let mut words = line.split_whitespace();
        let (kind, name) = (words.next().unwrap(), words.next().unwrap());
        assert!(kind != "U" || name.contains('@'), "{name}");
    }
}

#[test]
fn it_needs_the_c_library_and_no_driver() {
    let said = says("readelf", &["--dynamic", "--wide"]);
    let needed: BTreeSet<_> = said
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
    // Neither does it call the driver's functions past the loader's back.
    let said = says("nm", &["-D", "--undefined-only"]);
    for line in said.lines() {
        let name = line.split_whitespace().next_back().unwrap();
        assert!(
            !name.starts_with("cu") && !name.starts_with("nvml"),
            "{name}"
        );
    }
}
