//! The library file: its exported symbols and its dependencies.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use preload_table::{ENTRIES, Entry, NVML};

/// Runs a program of binutils on the library and returns its standard output.
fn inspect(program: &str, arguments: &[&str]) -> String {
    let test = std::env::current_exe().unwrap();
    let library: PathBuf = test.parent().unwrap().join("libweir_preload.so");
    let output = Command::new(program)
        .args(arguments)
        .arg(library)
        .output()
        .unwrap_or_else(|error| {
            panic!("`{program}`, a program of binutils, cannot be run: {error}")
        });
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the symbols that may be exported.
fn allowed() -> BTreeSet<&'static str> {
    let hooked = ENTRIES.iter().filter(|entry| entry.is_hooked());
    let nvml = NVML.iter().map(|name| name.to_str().unwrap());
    hooked
        .map(Entry::symbol)
        .chain(nvml)
        .chain(["dlsym"])
        .collect()
}

#[test]
fn exactly_the_symbols_of_the_table_are_exported() {
    let output = inspect("nm", &["-D", "--defined-only"]);
    let names = output
        .lines()
        .filter_map(|line| line.split_whitespace().next_back());
    let exported: BTreeSet<_> = names.collect();
    let allowed = allowed();
    assert!(allowed.len() > 350);
    assert!(!allowed.contains("cuGetExportTable"));
    let missing: Vec<_> = allowed.difference(&exported).collect();
    let more: Vec<_> = exported.difference(&allowed).collect();
    assert!(
        missing.is_empty() && more.is_empty(),
        "missing {missing:?}, more {more:?}"
    );
}

#[test]
fn no_symbol_requires_a_c_library_newer_than_the_floor() {
    // Symbols of files other than the C library's have versions of their own.
    let output = inspect("readelf", &["--version-info", "--wide"]);
    let mut newest = (0, 0);
    for version in output.split("Name: GLIBC_").skip(1) {
        let version = version.split_whitespace().next().unwrap();
        let mut numbers = version.split('.').map(|number| number.parse().unwrap());
        newest = newest.max((numbers.next().unwrap(), numbers.next().unwrap()));
    }
    assert!(newest > (0, 0));
    assert!(newest <= preload_floor::FLOOR, "{newest:?}\n{output}");
    // A symbol without a version is missing from the list in `floor`.
    for line in inspect("nm", &["-D", "--undefined-only"]).lines() {
        let mut words = line.split_whitespace();
        let (kind, name) = (words.next().unwrap(), words.next().unwrap());
        assert!(kind != "U" || name.contains('@'), "{name}");
    }
}

#[test]
fn it_depends_on_the_c_library_and_not_on_the_driver() {
    let output = inspect("readelf", &["--dynamic", "--wide"]);
    let needed: BTreeSet<_> = output
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0))
        .collect();
    // glibc 2.28 has `dlvsym` in libdl; later versions have it in libc.
    assert!(needed.contains("libdl.so.2"), "{needed:?}");
    for name in &needed {
        let is_system = ["libc.", "libdl.", "libpthread.", "libgcc_s.", "ld-linux"]
            .iter()
            .any(|start| name.starts_with(start));
        assert!(is_system, "{name}");
    }
    assert!(output.contains("NODELETE") && output.contains("[libweir_preload.so]"));
    if cfg!(debug_assertions) {
        return;
    }
    // An optimised build has no code left that panics, allocates or waits, and so needs none of those functions.
    assert_eq!(needed, BTreeSet::from(["libc.so.6", "libdl.so.2"]));
    let output = inspect("nm", &["-D", "--undefined-only"]);
    let functions: BTreeSet<_> = output
        .lines()
        .filter_map(|line| line.trim().strip_prefix("U ")?.split('@').next())
        .collect();
    let harmless = BTreeSet::from([
        "__errno_location",
        "bcmp",
        "dladdr",
        "dlclose",
        "dlerror",
        "dlopen",
        "dlvsym",
        "memcmp",
        "memcpy",
        "memset",
        "secure_getenv",
        "strlen",
        "syscall",
        "writev",
    ]);
    let more: Vec<_> = functions.difference(&harmless).collect();
    assert!(more.is_empty(), "{more:?}");
}

#[test]
fn addresses_of_its_own_functions_need_no_relocation() {
    // A relocation would resolve to another library's symbol of the same name, if that was loaded first.
    let allowed = allowed();
    for line in inspect("readelf", &["--relocs", "--wide"]).lines() {
        let named = line
            .split_whitespace()
            .find(|word| allowed.contains(word.split('@').next().unwrap()));
        assert!(named.is_none(), "{line}");
    }
}
