//! The file itself: what it exports, and what it needs of the system.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use preload_table::{ENTRIES, Entry, NVML};

/// What a program of binutils prints of the library.
fn says(program: &str, arguments: &[&str]) -> String {
    let test = std::env::current_exe().unwrap();
    let library: PathBuf = test.parent().unwrap().join("libweir_preload.so");
    let output = Command::new(program)
        .args(arguments)
        .arg(library)
        .output()
        .unwrap_or_else(|error| panic!("`{program}`, which comes with gcc: {error}"));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What may be exported.
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
fn exactly_what_the_table_says_is_exported() {
    let said = says("nm", &["-D", "--defined-only"]);
    let names = said
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
    assert!(newest <= preload_floor::FLOOR, "{newest:?}\n{said}");
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
    // `dlvsym` is in there before it came to be in the C library itself.
    assert!(needed.contains("libdl.so.2"), "{needed:?}");
    for name in &needed {
        let is_system = ["libc.", "libdl.", "libpthread.", "libgcc_s.", "ld-linux"]
            .iter()
            .any(|start| name.starts_with(start));
        assert!(is_system, "{name}");
    }
    assert!(said.contains("NODELETE") && said.contains("[libweir_preload.so]"));
    if cfg!(debug_assertions) {
        return;
    }
    // Optimised, there is nothing left that could panic, allocate or wait, so that nothing of the kind is called for.
    assert_eq!(needed, BTreeSet::from(["libc.so.6", "libdl.so.2"]));
    let said = says("nm", &["-D", "--undefined-only"]);
    let functions: BTreeSet<_> = said
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
fn it_knows_where_its_own_functions_are() {
    // Another library's of the same name, loaded before, would be given out in place of ours.
    let allowed = allowed();
    for line in says("readelf", &["--relocs", "--wide"]).lines() {
        let named = line
            .split_whitespace()
            .find(|word| allowed.contains(word.split('@').next().unwrap()));
        assert!(named.is_none(), "{line}");
    }
}
